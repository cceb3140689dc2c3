//! Foreign code behind a guard: decoders and parsers of other crates that panic on a crooked file give an error instead, and
//! nothing is printed.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Guards that this thread is inside of.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// What `f` gives, or what it said when it panicked: `what` names it ("the WebP decoder"). `f` must leave nothing half done that is
/// used afterwards.
pub(crate) fn guarded<T>(what: &str, f: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                usual(info);
            }
        }));
    });
    DEPTH.set(DEPTH.get() + 1);
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|cause| format!("{what} gave up on it ({})", message(&*cause)))
}

fn message(cause: &(dyn Any + Send)) -> &str {
    let owned = || cause.downcast_ref::<String>().map(String::as_str);
    cause.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_words() {
        assert_eq!(guarded("the test", || 7), Ok(7));
        let n = [1, 2].len();
        let e = guarded("the test", || [1, 2][n..][0]).unwrap_err();
        assert!(e.starts_with("the test gave up on it (index out of bounds"), "{e}");
        let inner = guarded("outer", || guarded("inner", || panic!("no")).unwrap_or(3));
        assert_eq!((inner, DEPTH.get()), (Ok(3), 0));
    }
}
