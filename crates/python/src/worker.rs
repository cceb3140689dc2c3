//! Threads that own what may not go from thread to thread: a model with its samplers, a training.
//!
//! A model of the library belongs to one thread ([`std::rc::Rc`], the device's graphs); Python hands objects from thread to thread as it
//! likes. So each has a thread of its own, which is handed one piece of work after another. Whoever waits has let go of the GIL and looks for signals.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::raise;

/// Between two looks for signals.
const LOOK: Duration = Duration::from_millis(20);

/// Says to the work at hand that nobody waits for it any more.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ask it to stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error once it was asked to.
    pub fn check(&self) -> tweedie::Result<()> {
        if self.asked() { Err(tweedie::Error::Interrupted) } else { Ok(()) }
    }
}

type Work<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A thread that owns a `T`. It ends when this is dropped and its work is done.
pub struct Worker<T> {
    work: Sender<Work<T>>,
    /// A fork copies this and not the thread.
    process: u32,
}

impl<T: 'static> Worker<T> {
    /// Make the `T` on a thread of its own, and something to know of it.
    pub fn start<R: Send + 'static>(
        py: Python,
        name: &str,
        make: impl FnOnce() -> tweedie::Result<(T, R)> + Send + 'static,
    ) -> PyResult<(Self, R)> {
        let (work, todo) = channel::<Work<T>>();
        let (tell, mut made) = channel();
        let body = move || match make() {
            Ok((mut owned, known)) => {
                let _ = tell.send(Ok(known));
                todo.into_iter().for_each(|f| f(&mut owned));
            }
            Err(e) => drop(tell.send(Err(e))),
        };
        thread::Builder::new().name(name.into()).spawn(body)?;
        let known = wait(py, &mut made, &Stop::default())?.map_err(raise)?;
        Ok((Worker { work, process: process::id() }, known))
    }

    /// Hand over work without waiting for it; what it returns comes later.
    pub fn send<R: Send + 'static>(&self, f: impl FnOnce(&mut T) -> R + Send + 'static) -> PyResult<Receiver<R>> {
        if self.process != process::id() {
            return Err(PyRuntimeError::new_err(
                "this model was loaded before the process was forked, and its thread is not in this one; load it here, or start processes by \"spawn\"",
            ));
        }
        let (tell, told) = channel();
        let work = Box::new(move |owned: &mut T| drop(tell.send(f(owned))));
        self.work.send(work).map_err(|_| ended())?;
        Ok(told)
    }

    /// Have work done and wait for it, without the GIL. Ctrl-C asks it to stop, and is raised when it has.
    pub fn call<R: Send + 'static>(
        &self,
        py: Python,
        f: impl FnOnce(&mut T, &Stop) -> tweedie::Result<R> + Send + 'static,
    ) -> PyResult<R> {
        self.call_raising(py, f, raise)
    }

    /// As [`Worker::call`]; `or` makes the exception of what the work says.
    pub fn call_raising<R: Send + 'static>(
        &self,
        py: Python,
        f: impl FnOnce(&mut T, &Stop) -> tweedie::Result<R> + Send + 'static,
        or: impl FnOnce(tweedie::Error) -> PyErr,
    ) -> PyResult<R> {
        let stop = Stop::default();
        let told = stop.clone();
        let mut answer = self.send(move |owned| f(owned, &told))?;
        wait(py, &mut answer, &stop)?.map_err(or)
    }
}

/// Wait for an answer without the GIL. A signal whose handler raises asks the work to stop; once it has, the exception is raised.
pub fn wait<R: Send>(py: Python, answer: &mut Receiver<R>, stop: &Stop) -> PyResult<R> {
    let mut raised = None;
    loop {
        let waiting = &mut *answer;
        match py.detach(move || waiting.recv_timeout(LOOK)) {
            Ok(told) => return raised.map_or(Ok(told), Err),
            Err(RecvTimeoutError::Disconnected) => return Err(raised.unwrap_or_else(ended)),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(e) = py.check_signals() {
                    stop.ask();
                    raised = Some(e);
                }
            }
        }
    }
}

fn ended() -> PyErr {
    PyRuntimeError::new_err("a thread of tweedie ended early, which is a defect; load the model again")
}
