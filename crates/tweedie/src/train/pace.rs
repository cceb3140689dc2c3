//! How fast a training goes: examples per second without what is not training, and when it will be done.

use std::time::{Duration, Instant};

/// What is timed apart from the steps.
#[derive(Clone, Copy)]
pub(super) enum Pause {
    Evaluation,
    Checkpoint,
}

/// Steps behind one, and what is left to do.
pub(super) struct Left {
    pub examples: usize,
    pub evaluations: usize,
    pub checkpoints: usize,
}

/// A stretch of steps between two events.
pub(super) struct Stretch {
    pub examples_per_second: f64,
    /// Share of the time that was spent waiting for data.
    pub waited: f64,
}

/// Speed so far. Evaluations and checkpoints are no part of it; they count by their own mean in what is left.
pub(super) struct Pace {
    since: Instant,
    examples: usize,
    /// What the loader had waited by then.
    waited: Duration,
    /// Time since then that was no training.
    apart: Duration,
    /// Seconds of an example, smoothed, and the stretches behind that.
    smooth: Option<f64>,
    stretches: usize,
    pauses: [Mean; 2],
}

#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    fn of(self, count: usize) -> f64 {
        self.sum / self.count.max(1) as f64 * count as f64
    }
}

/// A speed counts for about this long.
const MEMORY: f64 = 20.0;

impl Pace {
    /// From now on; the loader has `waited` so far.
    pub fn start(waited: Duration) -> Pace {
        Pace {
            since: Instant::now(),
            examples: 0,
            waited,
            apart: Duration::ZERO,
            smooth: None,
            stretches: 0,
            pauses: [Mean::default(); 2],
        }
    }

    /// A step was done on so many.
    pub fn add(&mut self, examples: usize) {
        self.examples += examples;
    }

    /// It did something else from `began` to now.
    pub fn paused(&mut self, why: Pause, began: Instant) {
        let took = began.elapsed();
        self.apart += took;
        let mean = &mut self.pauses[why as usize];
        mean.sum += took.as_secs_f64();
        mean.count += 1;
    }

    /// End a stretch of steps and begin the next.
    pub fn stretch(&mut self, waited: Duration) -> Stretch {
        let seconds = self.since.elapsed().saturating_sub(self.apart).as_secs_f64().max(1e-9);
        let examples = self.examples.max(1) as f64;
        self.smoothen(seconds, examples);
        let share = (waited - self.waited).as_secs_f64() / seconds;
        (self.since, self.examples, self.waited, self.apart) = (Instant::now(), 0, waited, Duration::ZERO);
        Stretch { examples_per_second: examples / seconds, waited: share.min(1.0) }
    }

    /// The first stretch, in which kernels are compiled and caches filled, is forgotten as soon as there is another; the next few count
    /// alike, later ones by their length.
    fn smoothen(&mut self, seconds: f64, examples: f64) {
        let new = seconds / examples;
        self.smooth = Some(match self.smooth {
            Some(old) if self.stretches > 1 => {
                let weight = (1.0 - (-seconds / MEMORY).exp()).max(1.0 / self.stretches as f64);
                old + weight.min(1.0) * (new - old)
            }
            _ => new,
        });
        self.stretches += 1;
    }

    /// Seconds to the end.
    pub fn left(&self, left: &Left) -> f64 {
        let pauses = [left.evaluations, left.checkpoints];
        let apart: f64 = self.pauses.iter().zip(pauses).map(|(mean, count)| mean.of(count)).sum();
        self.smooth.unwrap_or(0.0) * left.examples as f64 + apart
    }
}

/// How often something is due that comes every `every` epochs and at the end, with `done` of `epochs` behind.
pub(super) fn due(every: usize, done: usize, epochs: usize) -> usize {
    if done >= epochs {
        return 0;
    }
    if every == 0 {
        return 1;
    }
    epochs / every - done / every + usize::from(!epochs.is_multiple_of(every))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_counted() {
        // After epochs 3, 6, 9 and at the end, 10.
        let left: Vec<usize> = [0, 2, 3, 8, 9, 10].iter().map(|&d| due(3, d, 10)).collect();
        assert_eq!(left, [4, 4, 3, 2, 1, 0]);
        assert_eq!((due(5, 0, 10), due(5, 5, 10), due(0, 3, 10), due(0, 10, 10)), (2, 1, 1, 0));
    }

    /// An evaluation of a second between two stretches at one speed changes neither the speed nor the time of the steps that are left.
    #[test]
    fn a_pause_is_no_part_of_the_speed() {
        let mut p = Pace::start(Duration::ZERO);
        let ago = |s: f64| Instant::now().checked_sub(Duration::from_secs_f64(s)).unwrap();
        for apart in [0.0, 0.0, 100.0, 0.0] {
            (p.since, p.examples) = (ago(2.0 + apart), 200);
            if apart > 0.0 {
                p.paused(Pause::Evaluation, ago(apart));
            }
            let s = p.stretch(Duration::ZERO);
            assert!((s.examples_per_second - 100.0).abs() < 1.0, "{}", s.examples_per_second);
        }
        let left = |evaluations| p.left(&Left { examples: 1000, evaluations, checkpoints: 3 });
        assert!((left(0) - 10.0).abs() < 0.1 && (left(2) - 210.0).abs() < 1.0, "{} {}", left(0), left(2));
    }

    /// The first stretch is slow for reasons of its own, and one slow stretch among many does not turn the estimate over.
    #[test]
    fn the_estimate_is_smooth() {
        let mut p = Pace::start(Duration::ZERO);
        p.smoothen(60.0, 1.0);
        (0..40).for_each(|_| p.smoothen(1.0, 1.0));
        assert!((p.smooth.unwrap() - 1.0).abs() < 1e-9);
        p.smoothen(3.0, 1.0);
        assert!((1.0..1.5).contains(&p.smooth.unwrap()), "{:?}", p.smooth);
        (0..40).for_each(|_| p.smoothen(3.0, 1.0));
        assert!((p.smooth.unwrap() - 3.0).abs() < 0.1, "{:?}", p.smooth);
    }
}
