//! Connections: as many as are allowed, none for longer than it makes progress, and an end that does not wait for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

/// How long a client may take to send what stands before the body, and to begin the next request.
const HEADERS: Duration = Duration::from_secs(15);
/// How long a client may read nothing.
const STALL: Duration = Duration::from_secs(20);
/// Bytes of what stands before the body.
const MOST_HEADERS: usize = 64 << 10;
/// Wait after the system refused a connection, as where too many files are open.
const PAUSE: Duration = Duration::from_millis(50);

/// Answer connections until `draining` turns true; then wait up to `patience` for those that are open.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    mut draining: watch::Receiver<bool>,
    patience: Duration,
) {
    let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
    let places = Arc::new(Semaphore::new(most as usize));
    loop {
        let next = async {
            let place = places.clone().acquire_owned().await.ok()?;
            Some((place, listener.accept().await))
        };
        let next = tokio::select! {
            next = next => next,
            () = told(&mut draining) => break,
        };
        match next {
            Some((place, Ok((stream, _)))) => {
                tokio::spawn(answer(stream, router.clone(), place, draining.clone()));
            }
            Some((_, Err(_))) => sleep(PAUSE).await,
            None => break,
        }
    }
    drop(listener);
    let _ = timeout(patience, places.acquire_many(most)).await;
}

/// Wait until the server is told to end.
pub async fn told(draining: &mut watch::Receiver<bool>) {
    // Who would tell it is gone: that is an end as well.
    let _ = draining.wait_for(|d| *d).await;
}

async fn answer(stream: TcpStream, router: Router, _place: OwnedSemaphorePermit, mut draining: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Watched { stream, stalled: None });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(MOST_HEADERS)
        .serve_connection(io, TowerToHyperService::new(router));
    tokio::pin!(connection);
    // How a connection ends is its client's affair.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = told(&mut draining) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// A connection that breaks where its client reads nothing for too long.
struct Watched {
    stream: TcpStream,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    fn progress<T>(&mut self, poll: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, buf);
        self.progress(poll, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, bufs);
        self.progress(poll, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
