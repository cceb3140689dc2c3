//! Ctrl-C, and the signals of schedulers and closed terminals: the first asks the program to save and stop, the second ends it at once.
//! What samples or measures is stopped from outside by [`stoppable`], at its next step.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

use crate::error::{Error, Result};

/// Exit code of a program that was interrupted.
pub const EXIT_CODE: i32 = 130;

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Signals closer together than this are one: `timeout` and job schedulers signal a process and its group.
const ONE: Duration = Duration::from_millis(500);

/// From now on Ctrl-C (and the termination signal of job schedulers, and the end of the terminal) sets a flag; a second one, half a second later or more,
/// exits with [`EXIT_CODE`], without waiting for destructors, which may be what hangs. More calls change nothing.
pub fn install() -> Result<()> {
    install_saying(|| {})
}

/// As [`install`]; the first signal also calls `say`, at once and on a thread of its own, whatever the program is at.
pub fn install_saying(say: impl FnOnce() + Send + 'static) -> Result<()> {
    let mut fresh = false;
    let requested = REQUESTED.get_or_init(|| {
        fresh = true;
        Arc::default()
    });
    if !fresh {
        return Ok(());
    }
    let failed = |e| Error::Input(format!("Ctrl-C cannot be caught: {e}"));
    let mut caught = vec![SIGINT, SIGTERM];
    if !hangups_are_ignored() {
        caught.push(SIGHUP);
    }
    for &signal in &caught {
        flag::register(signal, Arc::clone(requested)).map_err(failed)?;
    }
    let mut signals = Signals::new(&caught).map_err(failed)?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let (mut first, mut say) = (None::<Instant>, Some(say));
            for _ in signals.forever() {
                if let Some(say) = say.take() {
                    // A terminal that takes no text for now must not hold up the second signal.
                    let _ = std::thread::Builder::new().name("interrupted".into()).spawn(say);
                }
                if first.get_or_insert_with(Instant::now).elapsed() >= ONE {
                    low_level::exit(EXIT_CODE);
                }
            }
        })
        .map_err(failed)?;
    Ok(())
}

/// Whether this process is to outlive its terminal, as `nohup` starts it: that must stay so. Where the system does not tell, it is
/// taken for granted.
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
    mask.is_none_or(|m| m >> (SIGHUP - 1) & 1 == 1)
}

thread_local! {
    static STOP: RefCell<Option<Rc<dyn Fn() -> bool>>> = const { RefCell::new(None) };
}

/// Do `work`. `stop` is asked before each step of a sampling or a bound inside, on this thread; once it says so, that ends with
/// [`Error::Interrupted`].
///
/// ```
/// use tweedie::{Dataset, Error, Classifier, interrupt};
///
/// let classifier = Classifier::open("embedded:digits")?;
/// let image = Dataset::embedded("digits")?.train()?.get(0)?.image;
/// let stopped = interrupt::stoppable(|| true, || classifier.classify(&image));
/// assert!(matches!(stopped, Err(Error::Interrupted)));
/// assert!(classifier.classify(&image).is_ok());
/// # Ok::<(), Error>(())
/// ```
pub fn stoppable<R>(stop: impl Fn() -> bool + 'static, work: impl FnOnce() -> R) -> R {
    /// Puts what was asked before back, also where the work panics.
    struct Before(Option<Rc<dyn Fn() -> bool>>);
    impl Drop for Before {
        fn drop(&mut self) {
            STOP.set(self.0.take());
        }
    }
    let _before = Before(STOP.replace(Some(Rc::new(stop))));
    work()
}

/// An error where the work of this thread is to stop.
pub(crate) fn check() -> Result<()> {
    let stop = STOP.with_borrow(Clone::clone);
    if stop.is_some_and(|stop| stop()) { Err(Error::Interrupted) } else { Ok(()) }
}

/// Whether the user has asked to stop since [`install`].
pub fn requested() -> bool {
    REQUESTED.get().is_some_and(|r| r.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Signals reach a whole process, so the test runs itself once more in a process of its own.
    #[test]
    fn the_first_asks_and_the_second_ends() {
        const CHILD: &str = "INTERRUPT_TEST_SIGNALS";
        if let Ok(signals) = std::env::var(CHILD) {
            assert!(!requested());
            install().unwrap();
            install().unwrap();
            for wait in signals.split_whitespace() {
                std::thread::sleep(Duration::from_millis(wait.parse().unwrap()));
                low_level::raise(SIGINT).unwrap();
            }
            // The second one is answered by another thread.
            std::thread::sleep(Duration::from_millis(200));
            std::process::exit(if requested() { 7 } else { 8 });
        }
        for (signals, code) in [("", 8), ("0", 7), ("0 1 1", 7), ("0 700", EXIT_CODE)] {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "interrupt::tests::the_first_asks_and_the_second_ends", "--nocapture"])
                .env(CHILD, signals)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert_eq!(status.code(), Some(code), "signals after {signals:?} ms");
        }
    }
}
