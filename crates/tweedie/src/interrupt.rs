//! Ctrl-C: the first asks the program to save and stop, the second ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{Error, Result};

/// Exit code of a program that was interrupted.
pub const EXIT_CODE: i32 = 130;

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on Ctrl-C (and the termination signal of job schedulers) sets a flag; a second one exits with [`EXIT_CODE`],
/// without waiting for destructors, which may be what hangs. More calls change nothing.
pub fn install() -> Result<()> {
    let mut fresh = false;
    let requested = REQUESTED.get_or_init(|| {
        fresh = true;
        Arc::default()
    });
    if !fresh {
        return Ok(());
    }
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal must not see the flag that it sets.
        flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(requested))
            .and_then(|_| flag::register(signal, Arc::clone(requested)))
            .map_err(|e| Error::Input(format!("Ctrl-C cannot be caught: {e}")))?;
    }
    Ok(())
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
            for _ in 0..signals.parse().unwrap() {
                signal_hook::low_level::raise(SIGINT).unwrap();
            }
            std::process::exit(if requested() { 7 } else { 8 });
        }
        for (signals, code) in [("0", 8), ("1", 7), ("2", EXIT_CODE)] {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "interrupt::tests::the_first_asks_and_the_second_ends", "--nocapture"])
                .env(CHILD, signals)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert_eq!(status.code(), Some(code), "{signals} signals");
        }
    }
}
