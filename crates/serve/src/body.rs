//! Bodies of requests within limits of size, memory and time, and bodies of answers that go on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream as FutureStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::app::App;
use crate::error::{Problem, Result};
use crate::render;
use crate::stream::{Next, Reading};

/// How long a body may take.
const SLOWEST: Duration = Duration::from_secs(20);
/// How long a large one waits for memory.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bodies up to this are not counted.
const SMALL: usize = 64 << 10;
/// Between pings.
const PING: Duration = Duration::from_secs(1);

/// All of a body, or why not.
pub async fn read(app: &App, request: Request<Body>) -> Result<Bytes> {
    let most = app.options.max_body;
    let told = told_length(request.headers());
    if told.is_some_and(|n| n > most as u64) {
        return Err(Problem::too_large(most));
    }
    let reserve = told.map_or(most, |n| n as usize);
    let _held = match reserve > SMALL {
        true => {
            let permits = app.bodies.acquire_many((reserve >> 10) as u32);
            let full = || Problem::overloaded("too many large requests at once", 1);
            Some(timeout(PATIENCE, permits).await.map_err(|_| full())?.map_err(|_| full())?)
        }
        false => None,
    };
    match timeout(SLOWEST, to_bytes(request.into_body(), most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(e)) if is_length_limit(&e) => Err(Problem::too_large(most)),
        Ok(Err(_)) => Err(Problem::malformed("the body of the request was cut short")),
        Err(_) => Err(Problem::too_slow()),
    }
}

fn told_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn is_length_limit(e: &axum::Error) -> bool {
    std::error::Error::source(e).is_some_and(|s| s.to_string().contains("length limit"))
}

/// Pieces of text that come from a task.
struct Pieces(Receiver<String>);

impl FutureStream for Pieces {
    type Item = std::result::Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|piece| piece.map(|p| Ok(Bytes::from(p))))
    }
}

/// An answer of events, and where to send them. A client that does not read makes its sender wait, nobody else.
pub fn events() -> (Sender<String>, Response) {
    let (to, from) = channel(8);
    let mut response = Body::from_stream(Pieces(from)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no")); // nginx
    (to, response)
}

/// The events of a stream from number `from` on, with a ping each second, to whoever reads the answer.
pub fn follow(reading: Reading, from: u64) -> Response {
    let (to, response) = events();
    tokio::spawn(async move {
        let mut at = from;
        let mut ping = interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        loop {
            let piece = tokio::select! {
                next = reading.0.wait(at) => match next {
                    Next::Event(told) => {
                        at += 1;
                        let (name, data) = render::event(&reading.0, &told);
                        render::sse(Some(at - 1), name, &data)
                    }
                    Next::Gone(first) => {
                        at = first; // it reads more slowly than the limit allows
                        continue;
                    }
                    Next::End | Next::Wait => return,
                },
                _ = ping.tick() => ": ping\n\n".to_string(),
                () = to.closed() => return,
            };
            if to.send(piece).await.is_err() {
                return;
            }
        }
    });
    response
}

/// Run something that computes, beside what answers requests, as many at a time as there are cores.
pub async fn blocking<T: Send + 'static>(app: &Arc<App>, f: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let lost = || Problem::internal("a part of the server failed at this request");
    let permit = app.decoding.clone().acquire_owned().await.map_err(|_| lost())?;
    let run = tokio::task::spawn_blocking(move || {
        let _held = permit;
        f()
    });
    run.await.map_err(|_| lost())
}
