//! What goes wrong, as a client reads it: `{"error":{"code","message","type","field"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Every handler returns this.
pub type Result<T> = std::result::Result<T, Problem>;

/// Longest message that is sent: an error may quote what a request holds.
const LONGEST: usize = 600;

/// An error with its status.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// What kind of error it is, for programs.
    pub kind: &'static str,
    /// In words, for people.
    pub message: String,
    /// The field that is to blame.
    pub field: Option<String>,
    /// When to ask again.
    pub retry_after: Option<u64>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Problem {
        Problem { status, kind, message: message.into(), field: None, retry_after: None }
    }

    fn invalid(status: StatusCode, message: impl Into<String>) -> Problem {
        Problem::new(status, "invalid_request", message)
    }

    /// 400: what was sent is not a request.
    pub fn malformed(message: impl Into<String>) -> Problem {
        Problem::invalid(StatusCode::BAD_REQUEST, message)
    }

    /// 422: it cannot be done.
    pub fn unprocessable(message: impl Into<String>) -> Problem {
        Problem::invalid(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    /// 422: a field has a wrong value.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { field: Some(field.into()), ..Problem::unprocessable(message) }
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Problem {
        Problem::invalid(StatusCode::NOT_FOUND, message)
    }

    /// 405.
    pub fn method() -> Problem {
        Problem::invalid(StatusCode::METHOD_NOT_ALLOWED, "this address does not take this method; see /openapi.json")
    }

    /// 408: the body did not come.
    pub fn too_slow() -> Problem {
        Problem::invalid(StatusCode::REQUEST_TIMEOUT, "the body of the request did not come in time")
    }

    /// 409: it is not in a state for this.
    pub fn conflict(message: impl Into<String>) -> Problem {
        Problem::invalid(StatusCode::CONFLICT, message)
    }

    /// 410: it was here and is not any more.
    pub fn gone(message: impl Into<String>) -> Problem {
        Problem::invalid(StatusCode::GONE, message)
    }

    /// 413.
    pub fn too_large(limit: usize) -> Problem {
        let message = format!("the body of the request is larger than {limit} bytes");
        Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// 401.
    pub fn unauthorized() -> Problem {
        let message = "this server wants its key: send the header Authorization: Bearer KEY";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// 403: from a page or under a name that must not.
    pub fn forbidden(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// 429: no place is free.
    pub fn overloaded(message: impl Into<String>, retry_after: u64) -> Problem {
        let base = Problem::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message);
        Problem { retry_after: Some(retry_after), ..base }
    }

    /// 503: not yet, or not any more.
    pub fn unavailable(message: impl Into<String>) -> Problem {
        Problem { retry_after: Some(1), ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message) }
    }

    /// 504: the client's own deadline has passed.
    pub fn deadline() -> Problem {
        Problem::new(StatusCode::GATEWAY_TIMEOUT, "deadline", "deadline_ms had passed before the answer was complete")
    }

    /// The end of a stream that a client stopped.
    pub fn cancelled() -> Problem {
        let status = StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST);
        Problem::new(status, "cancelled", "the request was stopped")
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The body.
    pub fn json(&self) -> Value {
        let mut message: String = self.message.chars().take(LONGEST).collect();
        if message.len() < self.message.len() {
            message.push('…');
        }
        let mut error = json!({"code": self.status.as_u16(), "message": message, "type": self.kind});
        if let Some(field) = &self.field {
            error["field"] = field.chars().take(80).collect::<String>().into();
        }
        json!({"error": error})
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.json())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An error of the library while something is looked up or checked: the client's to mend, of the field `field`.
pub fn refused(field: &'static str) -> impl Fn(tweedie::Error) -> Problem {
    move |e| Problem::field(field, e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_what_the_reference_says() {
        let p = Problem::field("guidance", "too much");
        let want =
            json!({"error": {"code": 422, "message": "too much", "type": "invalid_request", "field": "guidance"}});
        assert_eq!(p.json(), want);
        assert_eq!(Problem::overloaded("full", 3).into_response().headers()["retry-after"], "3");
        let long = Problem::internal("é".repeat(5000)).json()["error"]["message"].as_str().unwrap().chars().count();
        assert_eq!(long, LONGEST + 1);
    }
}
