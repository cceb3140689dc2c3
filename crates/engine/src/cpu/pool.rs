//! Recycled f32 buffers. A fresh large `Vec` costs a page fault for every 4 KiB at first touch; a training
//! step asks for the same sizes over and over, so dropped buffers are kept by length and handed out again.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{LazyLock, Mutex};

/// Shorter buffers go through the system allocator, which is fast for them.
const MIN_LEN: usize = 1024;
/// At most this many bytes lie idle; above it buffers are freed.
const MAX_IDLE: usize = 4 << 30;

#[derive(Default)]
struct Idle {
    by_len: HashMap<usize, Vec<Vec<f32>>>,
    bytes: usize,
}

static IDLE: LazyLock<Mutex<Idle>> = LazyLock::new(Mutex::default);

/// A `Vec<f32>` that goes back to the pool when dropped, if it came from there: what others made, batch after batch, would pile up.
#[derive(Debug)]
pub(crate) struct Buf {
    values: Vec<f32>,
    pooled: bool,
}

impl Buf {
    /// `n` values of unspecified (stale, but initialised) content.
    pub fn scratch(n: usize) -> Buf {
        if n >= MIN_LEN
            && let Ok(mut idle) = IDLE.lock()
            && let Some(v) = idle.by_len.get_mut(&n).and_then(Vec::pop)
        {
            idle.bytes -= n * 4;
            return Buf { values: v, pooled: true };
        }
        Buf { values: vec![0.0; n], pooled: n >= MIN_LEN }
    }

    /// `n` zeros.
    pub fn zeros(n: usize) -> Buf {
        let mut b = Buf::scratch(n);
        b.fill(0.0);
        b
    }
}

impl From<Vec<f32>> for Buf {
    fn from(v: Vec<f32>) -> Buf {
        Buf { values: v, pooled: false }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let n = self.values.len();
        if self.pooled
            && let Ok(mut idle) = IDLE.lock()
            && idle.bytes + n * 4 <= MAX_IDLE
        {
            idle.bytes += n * 4;
            idle.by_len.entry(n).or_default().push(std::mem::take(&mut self.values));
        }
    }
}

impl Deref for Buf {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_handed_out_again() {
        let n = 123_457; // a length no other test uses
        let mut a = Buf::scratch(n);
        a[7] = 42.0;
        let p = a.as_ptr();
        drop(a);
        let b = Buf::scratch(n);
        assert_eq!((b.as_ptr(), b[7]), (p, 42.0));
        drop(b);
        assert_eq!(Buf::zeros(n)[7], 0.0);
    }

    #[test]
    fn what_others_made_is_not_kept() {
        let n = 123_459;
        (0..9).for_each(|_| drop(Buf::from(vec![1.0; n])));
        assert!(IDLE.lock().unwrap().by_len.get(&n).is_none_or(Vec::is_empty));
    }
}
