//! What every request passes: its name, who may ask, from which page, and what is told of it afterwards.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::error::{Problem, Result};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Around every route.
pub async fn guard(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let begun = Instant::now();
    let id = request_id(request.headers()).unwrap_or_else(|| app.names.next("q-"));
    let (method, path) = (method_name(request.method()), request.uri().path().to_string());
    let route = request.extensions().get::<MatchedPath>().map_or("other".to_string(), |m| m.as_str().to_string());
    let origin = request.headers().get(header::ORIGIN).filter(|o| is_allowed_origin(&app, o)).cloned();
    let preflight = method == "OPTIONS" && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let checked = check(&app, &request, &path, preflight);
    let mut response = match checked {
        Ok(()) if preflight && origin.is_some() => StatusCode::NO_CONTENT.into_response(),
        Ok(()) => in_json(next.run(request).await),
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    if let Some(origin) = origin {
        allow(headers, origin);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, value);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let status = response.status().as_u16();
    app.stats.request(method, route, status);
    app.log.request(&id, method, &path, status, begun.elapsed().as_secs_f64() * 1e3);
    response
}

/// A client's own name for its request, where it is one.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let sane = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    ((1..=80).contains(&id.len()) && id.chars().all(sane)).then(|| id.to_string())
}

fn method_name(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS", "PUT"];
    known.into_iter().find(|m| *m == method.as_str()).unwrap_or("OTHER")
}

fn check(app: &App, request: &Request<Body>, path: &str, preflight: bool) -> Result<()> {
    let headers = request.headers();
    let host = host_of(headers, request.uri());
    check_host(app, host.as_deref())?;
    let open = path == "/" || path == "/health" || path == "/favicon.ico" || path.starts_with("/static/");
    if open {
        return Ok(());
    }
    check_origin(app, headers, host.as_deref())?;
    match &app.options.api_key {
        Some(key) if !preflight && !bearer(headers).is_some_and(|sent| same(sent, key.as_bytes())) => {
            Err(Problem::unauthorized())
        }
        _ => Ok(()),
    }
}

/// The name under which the server was called, with a port or without.
fn host_of(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let mut named = headers.get_all(header::HOST).iter();
    match (named.next(), named.next()) {
        (Some(host), None) => host.to_str().ok().map(str::to_ascii_lowercase),
        (None, _) => uri.authority().map(|a| a.as_str().to_ascii_lowercase()),
        _ => None,
    }
}

/// A page that makes its own name lead to this machine must not reach the server by it: names are loopback ones, the address that is
/// listened at, and those that were allowed.
fn check_host(app: &App, host: Option<&str>) -> Result<()> {
    let name = host.and_then(without_port);
    let fits = |name: &str| {
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let bound = app.address.ip();
        let by_address =
            bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip == bound || bound.is_unspecified());
        by_address || name == "localhost" || app.options.allow_host.iter().any(|h| h.eq_ignore_ascii_case(name))
    };
    match name {
        Some(name) if fits(name) => Ok(()),
        Some(name) => {
            let shown: String = name.chars().take(80).collect();
            Err(Problem::forbidden(format!(
                "the server is not called {shown:?}; start it with --allow-host to let it be"
            )))
        }
        None => Err(Problem::forbidden("the request has no Host header, or none that can be read")),
    }
}

/// "host:port", "[::1]:port" or either without a port.
fn without_port(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, rest) = host.split_at(end);
    let port = rest.strip_prefix(':').unwrap_or(rest);
    (!name.is_empty() && port.chars().all(|c| c.is_ascii_digit())).then_some(name)
}

/// A browser says which page asks: only the server's own may, and those that were allowed.
fn check_origin(app: &App, headers: &HeaderMap, host: Option<&str>) -> Result<()> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let text = origin.to_str().unwrap_or_default().to_ascii_lowercase();
    let place = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if (place.is_some() && place == host) || is_allowed_origin(app, origin) {
        return Ok(());
    }
    Err(Problem::forbidden("pages of other origins may not use this server; start it with --allow-origin to let them"))
}

fn is_allowed_origin(app: &App, origin: &HeaderValue) -> bool {
    app.options.allow_origin.iter().any(|o| o == "*" || origin.as_bytes().eq_ignore_ascii_case(o.as_bytes()))
}

fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PATCH, DELETE"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, last-event-id, x-request-id"),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, "x-request-id, retry-after"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let sent = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = sent.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}

/// Compared in a time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(a.len() ^ b.len(), |d, (x, y)| d | usize::from(x ^ y));
    std::hint::black_box(differ) == 0
}

/// What the framework refuses by itself, as a query that cannot be read, is told in the form of all errors.
fn in_json(response: Response) -> Response {
    let status = response.status();
    let json = response.headers().get(header::CONTENT_TYPE).is_some_and(|t| t == "application/json");
    if !status.is_client_error() || json {
        return response;
    }
    Problem { status, ..Problem::malformed("the address or its query cannot be read; see /openapi.json") }
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_or_not() {
        assert!(same(b"secret", b"secret"));
        for other in [&b"secreT"[..], b"secre", b"secrets", b""] {
            assert!(!same(other, b"secret"));
        }
    }

    #[test]
    fn hosts_lose_their_ports() {
        for (host, name) in [
            ("localhost:80", Some("localhost")),
            ("localhost", Some("localhost")),
            ("[::1]:8080", Some("[::1]")),
            ("127.0.0.1:1", Some("127.0.0.1")),
            ("a:b", None),
            (":80", None),
            ("[::1", None),
            ("[::1]x", None),
        ] {
            assert_eq!(without_port(host), name, "{host}");
        }
    }

    #[test]
    fn names_of_requests_are_sane_or_made() {
        let of = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(id.as_bytes()).unwrap());
            request_id(&headers)
        };
        assert_eq!(of("ab-1.2:x_y").as_deref(), Some("ab-1.2:x_y"));
        for wrong in ["", "a b", "é", &"x".repeat(81), "a\"b"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
