//! Whole sampling runs as captured graphs: on a GPU, hundreds of small kernels then cost one call of the host and follow each
//! other without gaps. What is captured is the same code that runs without a graph, so the results have the same bits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tweedie_engine::Device;
use tweedie_engine::cuda::Cuda;

use crate::error::Result;

/// What became of the graphs of a sampler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphUse {
    /// Runs that were replays.
    pub replays: usize,
    /// Kernels, copies and fills of the last graph.
    pub nodes: usize,
    /// Device memory of all graphs, in bytes.
    pub memory: usize,
    /// Why a run could not be captured, if one could not: it ran without a graph.
    pub failure: Option<String>,
}

/// The size of a captured run.
pub(super) trait Captured {
    /// Nodes and bytes.
    fn size(&self) -> (usize, usize);
}

enum Entry<E> {
    /// Ran once without a graph, so its kernels are compiled and its products tuned. A run that comes once is never captured.
    Seen,
    Ready(Rc<E>),
    /// Cannot be captured.
    Direct,
}

/// Captured runs by what they depend on, such as the batch size. Weights may not change while this lives: a graph knows their
/// addresses.
pub(super) struct Graphs<K, E> {
    wanted: bool,
    entries: RefCell<Vec<(K, Entry<E>)>>,
    replays: Cell<usize>,
    failure: RefCell<Option<String>>,
}

/// Each keeps all intermediate values of a run: a full batch and a last, shorter one are what is usual.
const MOST: usize = 4;

impl<K: PartialEq, E: Captured> Graphs<K, E> {
    /// `TWEEDIE_GRAPHS=0` in the environment switches them off everywhere.
    pub fn new() -> Graphs<K, E> {
        let wanted = std::env::var_os("TWEEDIE_GRAPHS").is_none_or(|v| v != "0");
        Graphs { wanted, entries: RefCell::default(), replays: Cell::new(0), failure: RefCell::default() }
    }

    pub fn allow(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    pub fn usage(&self) -> GraphUse {
        let ready = |e: &(K, Entry<E>)| match &e.1 {
            Entry::Ready(e) => Some(e.size()),
            _ => None,
        };
        let sizes: Vec<(usize, usize)> = self.entries.borrow().iter().filter_map(ready).collect();
        GraphUse {
            replays: self.replays.get(),
            nodes: sizes.last().map_or(0, |s| s.0),
            memory: sizes.iter().map(|s| s.1).sum(),
            failure: self.failure.borrow().clone(),
        }
    }

    /// Run what `key` stands for: `direct` on the CPU and the first time, from then on by `replay` of what `capture` made.
    pub fn run<R>(
        &self,
        device: &Device,
        key: K,
        direct: impl FnOnce() -> Result<R>,
        capture: impl FnOnce(&Cuda) -> Result<E>,
        replay: impl FnOnce(&E) -> Result<R>,
    ) -> Result<R> {
        let Device::Cuda(c) = device else { return direct() };
        if !self.wanted {
            return direct();
        }
        let at = self.entries.borrow().iter().position(|e| e.0 == key);
        let Some(at) = at else {
            let result = direct()?;
            let mut entries = self.entries.borrow_mut();
            if entries.len() == MOST {
                entries.remove(0);
            }
            entries.push((key, Entry::Seen));
            return Ok(result);
        };
        let known = match &self.entries.borrow()[at].1 {
            Entry::Ready(e) => Some(e.clone()),
            Entry::Direct => return direct(),
            Entry::Seen => None,
        };
        let ready = match known {
            Some(e) => e,
            None => match capture(c) {
                Ok(e) => {
                    let e = Rc::new(e);
                    self.entries.borrow_mut()[at].1 = Entry::Ready(e.clone());
                    e
                }
                Err(why) => {
                    *self.failure.borrow_mut() = Some(why.to_string());
                    self.entries.borrow_mut()[at].1 = Entry::Direct;
                    return direct();
                }
            },
        };
        self.replays.set(self.replays.get() + 1);
        replay(&ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Captured for Nothing {
        fn size(&self) -> (usize, usize) {
            (3, 5)
        }
    }

    #[test]
    fn the_cpu_runs_directly_every_time() {
        let graphs = Graphs::<usize, Nothing>::new();
        for _ in 0..3 {
            let got = graphs.run(&Device::Cpu, 1, || Ok("direct"), |_| Ok(Nothing), |_| Ok("replayed")).unwrap();
            assert_eq!(got, "direct");
        }
        assert_eq!(graphs.usage(), GraphUse::default());
    }
}
