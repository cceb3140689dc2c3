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
    /// Why a batch could not be captured, if one could not: it ran without a graph.
    pub failure: Option<String>,
}

/// The size of a captured graph.
pub(crate) trait Captured {
    /// Nodes and bytes.
    fn size(&self) -> (usize, usize);
}

enum Slot<E> {
    /// Ran once without a graph, so its kernels are compiled and its products tuned. A batch that comes once is never captured.
    Seen,
    Ready(Rc<E>),
    /// Cannot be captured.
    Direct,
}

/// Captured graphs by what they depend on, such as the batch size. Weights may not change while this lives: a graph holds their
/// addresses.
pub(crate) struct Graphs<K, E> {
    wanted: bool,
    most: usize,
    slots: RefCell<Vec<(K, Slot<E>)>>,
    replays: Cell<usize>,
    failure: RefCell<Option<String>>,
}

/// Each keeps all intermediate values of a batch: a full batch and a last, shorter one are what is usual.
const MOST: usize = 4;

impl<K: PartialEq, E: Captured> Graphs<K, E> {
    /// `TWEEDIE_GRAPHS=0` in the environment switches them off everywhere.
    pub fn new() -> Graphs<K, E> {
        let wanted = std::env::var_os("TWEEDIE_GRAPHS").is_none_or(|v| v != "0");
        Graphs { wanted, most: MOST, slots: RefCell::default(), replays: Cell::new(0), failure: RefCell::default() }
    }

    /// With room for so many of them.
    #[must_use]
    pub fn with_room(self, most: usize) -> Graphs<K, E> {
        Graphs { most: most.max(1), ..self }
    }

    pub fn allow(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    pub fn usage(&self) -> GraphUse {
        let ready = |e: &(K, Slot<E>)| match &e.1 {
            Slot::Ready(e) => Some(e.size()),
            _ => None,
        };
        let sizes: Vec<(usize, usize)> = self.slots.borrow().iter().filter_map(ready).collect();
        GraphUse {
            replays: self.replays.get(),
            nodes: sizes.last().map_or(0, |s| s.0),
            memory: sizes.iter().map(|s| s.1).sum(),
            failure: self.failure.borrow().clone(),
        }
    }

    /// Compute what `key` stands for: `direct` on the CPU and the first time, from then on by `replay` of what `capture` made.
    pub fn replay_or_record<R>(
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
        let at = self.slots.borrow().iter().position(|e| e.0 == key);
        let Some(at) = at else {
            let result = direct()?;
            let mut slots = self.slots.borrow_mut();
            if slots.len() == self.most {
                slots.remove(0);
            }
            slots.push((key, Slot::Seen));
            return Ok(result);
        };
        let recorded = match &self.slots.borrow()[at].1 {
            Slot::Ready(e) => Some(e.clone()),
            Slot::Direct => return direct(),
            Slot::Seen => None,
        };
        let ready = match recorded {
            Some(e) => e,
            None => match capture(c) {
                Ok(e) => {
                    let e = Rc::new(e);
                    self.slots.borrow_mut()[at].1 = Slot::Ready(e.clone());
                    e
                }
                Err(why) => {
                    *self.failure.borrow_mut() = Some(why.to_string());
                    self.slots.borrow_mut()[at].1 = Slot::Direct;
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
            let got =
                graphs.replay_or_record(&Device::Cpu, 1, || Ok("direct"), |_| Ok(Nothing), |_| Ok("replayed")).unwrap();
            assert_eq!(got, "direct");
        }
        assert_eq!(graphs.usage(), GraphUse::default());
    }
}
