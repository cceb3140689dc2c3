//! The page: files that the program holds.

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::{Problem, Result};

/// A file of the page.
struct Asset {
    name: &'static str,
    /// Changes with the bytes.
    tag: &'static str,
    bytes: &'static [u8],
}

static PAGE: &[Asset] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// What the page may load and do: its own files, and the server's answers.
const POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; object-src 'none'; base-uri 'none'; \
                      frame-ancestors 'none'; form-action 'none'";

pub async fn index(headers: HeaderMap) -> Result<Response> {
    serve("index.html", &headers)
}

pub async fn file(Path(path): Path<String>, headers: HeaderMap) -> Result<Response> {
    serve(&path, &headers)
}

/// An icon, where the page has one; browsers ask in any case.
pub async fn icon(headers: HeaderMap) -> Response {
    serve("favicon.svg", &headers).unwrap_or_else(|_| StatusCode::NO_CONTENT.into_response())
}

fn serve(name: &str, headers: &HeaderMap) -> Result<Response> {
    let found = PAGE.iter().find(|a| a.name == name);
    let asset = found.ok_or_else(|| Problem::not_found("the page has no such file"))?;
    let known = headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok());
    let mut response = match known.is_some_and(|tags| tags.split(',').any(|t| t.trim() == asset.tag)) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Body::from(asset.bytes).into_response(),
    };
    let all = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, content_type(name)),
        (header::ETAG, asset.tag),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
    ] {
        all.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "webmanifest" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "woff2" => "font/woff2",
        "txt" | "md" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_held_with_its_tags() {
        let index = serve("index.html", &HeaderMap::new()).unwrap();
        assert_eq!(index.status(), StatusCode::OK);
        assert_eq!(index.headers()["content-type"], "text/html; charset=utf-8");
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, index.headers()["etag"].clone());
        assert_eq!(serve("index.html", &headers).unwrap().status(), StatusCode::NOT_MODIFIED);
        for wrong in ["", "/", "../Cargo.toml", "index.html/", "Index.html"] {
            assert_eq!(serve(wrong, &HeaderMap::new()).unwrap_err().status, StatusCode::NOT_FOUND, "{wrong}");
        }
        assert!(PAGE.iter().all(|a| !content_type(a.name).starts_with("application/octet")), "a file of unknown kind");
    }
}
