//! Paths on which tokens start one after another (`sample.stagger`): each has a time of its own, and takes steps of its own.

use tweedie_engine::rng;

use super::STARTS;
use super::sampler::{Linear, Sampler};
use super::state::{Mix, Prediction, State};
use crate::error::Result;
use crate::loss::{staggered, start_of};
use crate::process::{Process, Times, Update};

/// A linear sampler along such a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staggered {
    pub linear: Linear,
    /// How many times as long as a token's own the path is.
    pub length: usize,
}

impl Staggered {
    /// The moment, of all `length`·T, after which the token at `place` is on its way: drawn by the seed and the example.
    pub fn start(self, process: &Process, (seed, example): (u64, u32), place: usize) -> usize {
        let words = rng::philox([place as u32, example, 0, STARTS], [seed as u32, (seed >> 32) as u32]);
        start_of(rng::uniform_of(words[0]) as f64, (process.steps(), self.length))
    }

    /// The time of a token that begins at `start`, when the way as a whole is at `t` of T.
    pub fn time(self, process: &Process, start: usize, t: usize) -> usize {
        staggered(t * self.length, start, process.steps()) as usize
    }

    /// The step of such a token: from y_t and the estimate to y_s.
    pub fn update(self, process: &Process, start: usize, at: Times) -> Update {
        let [t, s] = [at.t, at.s].map(|t| self.time(process, start, t));
        self.linear.update(process, Times { t, s })
    }
}

impl Sampler for Staggered {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        let clean = self.linear.choose(prediction, at.s == 0)?;
        let (process, [_, tokens, _]) = (state.process(), prediction.shape());
        let of = |address| (0..tokens).map(move |place| self.start(process, address, place));
        let starts: Vec<usize> = state.addresses().into_iter().flat_map(of).collect();
        let updates = starts.iter().map(|start| self.update(process, *start, at)).collect();
        state.update(&clean, Mix::Each(updates))?;
        let next: Vec<usize> = starts.iter().map(|start| self.time(process, *start, at.s)).collect();
        state.set_token_times(&next)
    }

    fn reads_log_probs(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SampleConfig;
    use crate::sample::BuiltIn;
    use crate::{Schedule, ScheduleKind};

    /// From pure noise to clean, never back, all tokens in different steps; the seed and the example say which begins when.
    #[test]
    fn tokens_take_steps_of_their_own() {
        let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 9).unwrap());
        let config = SampleConfig { stagger: 4, ..SampleConfig::default() };
        let BuiltIn::Staggered(path) = BuiltIn::of(&config, true) else { panic!("{config:?}") };
        assert!(matches!(BuiltIn::of(&config, false), BuiltIn::Linear(_)));
        let starts = |example| (0..200).map(|i| path.start(&process, (3, example), i)).collect::<Vec<_>>();
        assert!(starts(7) == starts(7) && starts(7) != starts(8));
        let starts = starts(7);
        let steps = process.spaced(20);
        for start in &starts {
            let times: Vec<usize> = steps.iter().map(|at| path.time(&process, *start, at.t)).collect();
            assert_eq!((times[0], path.time(&process, *start, 0)), (1000, Process::FIRST));
            assert!(times.is_sorted_by(|t, s| t >= s));
            // A quarter of the way is its own, but for the ends of steps.
            let moving = times.iter().filter(|t| (2..1000).contains(*t)).count();
            assert!((4..=5).contains(&moving), "{times:?}");
        }
        // Before its way begins and after it ends a vector stays what it is by the posterior step.
        let path = Staggered { linear: crate::sample::sampler::ANCESTRAL, ..path };
        let stays = Update { clean: 0.0, keep: 1.0, noise: 0.0 };
        assert_eq!(path.update(&process, 0, Times { t: 1000, s: 950 }), stays);
        assert_eq!(path.update(&process, 3000, Times { t: 600, s: 500 }), stays);
        assert_eq!(path.update(&process, 1000, Times { t: 400, s: 300 }), process.reverse(Times { t: 600, s: 200 }));
    }
}
