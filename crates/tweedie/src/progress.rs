//! How far long work has come, for whoever shows it. It is told on the thread that does the work, often, and is kept nowhere: what a
//! training is to be remembered by are its [events](crate::train::Event).

use std::cell::RefCell;
use std::rc::Rc;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The first batch of a training is read: caches are filled.
    FirstBatch,
    /// The first step of a training: a GPU's kernels are compiled, its products are chosen.
    FirstStep,
    /// Optimizer steps.
    Steps,
    /// Examples of an evaluation.
    Evaluation,
    /// A checkpoint is written and samples are drawn.
    Checkpoint,
    /// Images or texts that go through CLIP.
    Clip,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub work: Work,
    /// How much of it is done.
    pub done: usize,
    /// How much there is; 0 where that is not known.
    pub of: usize,
}

type Watcher = Rc<dyn Fn(Progress)>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Do `work`; `each` is told how far it has come, unless something inside is watched by itself.
///
/// ```
/// use tweedie::progress::{self, Work};
/// # use tweedie::{Config, Dataset, Device, train::Trainer};
/// # let config = Config::preset("digits")?.with("train.batch", 512)?.with("train.epochs", 1)?.with("train.eval_images", 1)?;
/// # let mut trainer = Trainer::new(&config, Dataset::embedded("digits")?, &Device::Cpu)?;
///
/// let show = |p: progress::Progress| {
///     if p.work == Work::Steps {
///         println!("step {} of {}", p.done, p.of);
///     }
/// };
/// progress::watched(show, || trainer.fit(|_| {}, |_, _| Ok(String::new()), || false))?;
/// # Ok::<(), tweedie::Error>(())
/// ```
pub fn watched<R>(each: impl Fn(Progress) + 'static, work: impl FnOnce() -> R) -> R {
    /// Puts the watcher before back, also where the work panics.
    struct Before(Option<Watcher>);
    impl Drop for Before {
        fn drop(&mut self) {
            WATCHER.set(self.0.take());
        }
    }
    let _before = Before(WATCHER.replace(Some(Rc::new(each))));
    work()
}

/// Tell the watcher, if there is one.
pub(crate) fn tell(work: Work, done: usize, of: usize) {
    // Not borrowed while it is told: it may watch something itself.
    let watcher = WATCHER.with_borrow(Clone::clone);
    if let Some(watcher) = watcher {
        watcher(Progress { work, done, of });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_watcher_is_told() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let told = |name: &'static str| {
            let seen = seen.clone();
            move |p: Progress| seen.borrow_mut().push((name, p.done))
        };
        tell(Work::Steps, 0, 9);
        watched(told("outer"), || {
            tell(Work::Steps, 1, 9);
            watched(told("inner"), || tell(Work::Steps, 2, 9));
            tell(Work::Steps, 3, 9);
        });
        tell(Work::Steps, 4, 9);
        assert_eq!(*seen.borrow(), [("outer", 1), ("inner", 2), ("outer", 3)]);
    }
}
