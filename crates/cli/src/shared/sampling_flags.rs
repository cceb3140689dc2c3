//! Flags of samplers of sequences that mean nothing for a model are refused: no answer should seem to heed them. What the run's
//! own settings say is left alone, however little it means.

use tweedie::config::{SampleConfig, SamplerKind, Unmasking};
use tweedie::model::Model;

use crate::failure::{Failure, Result};

/// A flag that is given though it has no meaning.
pub fn meaningless(flag: &str, why: &str) -> Failure {
    Failure::input(format!("{flag} has no meaning here: {why}"))
}

/// Which flags the user gave.
#[derive(Clone, Copy, Default)]
pub struct Given {
    pub sampler: bool,
    pub unmask: bool,
    pub guesses: bool,
    pub schedule: bool,
}

impl Given {
    /// Refuse those that change nothing in any of the `settings` that came of them.
    pub fn check(self, model: &Model, settings: &[SampleConfig]) -> Result<()> {
        match self.idle((model.is_tdd(), model.knows()), settings) {
            Some((flag, why)) => Err(meaningless(flag, why)),
            None => Ok(()),
        }
    }

    /// The first flag that changes nothing, and why; of the masked twin, or of TDD that knows or does not.
    fn idle(self, (tdd, knows): (bool, bool), settings: &[SampleConfig]) -> Option<(&'static str, &'static str)> {
        let none_settles = knows && !settings.iter().any(SampleConfig::settles);
        let confident = settings.iter().any(|s| s.unmask == Unmasking::Confident);
        let all_noise = knows && settings.iter().all(|s| s.settles() && s.guesses == 0.0);
        let of_noise = settings.iter().any(|s| matches!(s.sampler, SamplerKind::Softmax | SamplerKind::Ddim));
        let all = [
            (
                self.sampler && !tdd && of_noise,
                "--sampler softmax or ddim",
                "they step between noisy vectors, and MDD has masked tokens: --unmask random or confident, with --sampler \
                 argmax or multinomial",
            ),
            (self.unmask && tdd && !knows, "--unmask", "this model masks nothing (see train.known)"),
            (self.guesses && !knows, "--guesses", "it goes with TDD trained with train.known"),
            (self.schedule && !tdd, "--schedule", "masking has no noise levels"),
            (
                self.unmask && confident && none_settles,
                "--unmask confident",
                "this sampler settles no tokens, argmax and multinomial do",
            ),
            (
                self.guesses && none_settles,
                "--guesses",
                "no token is settled before the end; that takes --unmask confident and --sampler argmax or multinomial",
            ),
            (
                self.schedule && all_noise,
                "--schedule",
                "tokens that are not settled are pure noise at every step; --guesses above 0 gives them noise levels",
            ),
        ];
        all.into_iter().find(|f| f.0).map(|(_, flag, why)| (flag, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWS: (bool, bool) = (true, true);
    const TDD: (bool, bool) = (true, false);
    const MDD: (bool, bool) = (false, false);

    fn setting(unmask: Unmasking, sampler: SamplerKind, guesses: f32) -> SampleConfig {
        SampleConfig { unmask, sampler, guesses, ..SampleConfig::default() }
    }

    #[test]
    fn a_flag_that_changes_nothing_is_refused() {
        use SamplerKind::{Ancestral, Argmax, Ddim, Multinomial, Softmax};
        use Unmasking::{Confident, Random};
        let flag = |given: Given, model, settings: &[SampleConfig]| given.idle(model, settings).map(|f| f.0);
        let none = Given::default();
        let (unmask, guesses) = (Given { unmask: true, ..none }, Given { guesses: true, ..none });
        let schedule = Given { schedule: true, ..none };
        let settles = [setting(Confident, Argmax, 0.5)];
        for (model, want) in [
            (KNOWS, [None, None, None]),
            (TDD, [Some("--unmask"), Some("--guesses"), None]),
            (MDD, [None, Some("--guesses"), Some("--schedule")]),
        ] {
            assert_eq!([unmask, guesses, schedule].map(|g| flag(g, model, &settles)), want, "{model:?}");
        }
        let random = [0.0, 0.5, 1.0].map(|g| setting(Random, Argmax, g));
        assert_eq!(flag(Given { unmask: true, ..guesses }, KNOWS, &random), Some("--guesses"));
        assert_eq!(flag(unmask, KNOWS, &random[..1]), None, "random turns off what the run's settings say");
        for sampler in [Ddim, Softmax, Ancestral] {
            let s = [setting(Confident, sampler, 0.0)];
            assert_eq!(flag(unmask, KNOWS, &s), Some("--unmask confident"), "{sampler:?}");
            assert_eq!(flag(guesses, KNOWS, &s), Some("--guesses"), "{sampler:?}");
            assert_eq!(flag(schedule, KNOWS, &s), None, "{sampler:?}");
            assert_eq!(flag(none, KNOWS, &s), None, "the run's own settings are not refused");
        }
        let sampler = Given { sampler: true, ..none };
        for (name, of_noise) in
            [(Argmax, false), (Multinomial, false), (Ancestral, false), (Softmax, true), (Ddim, true)]
        {
            let s = [setting(Random, Argmax, 0.0), setting(Random, name, 0.0)];
            assert_eq!(flag(sampler, MDD, &s), of_noise.then_some("--sampler softmax or ddim"), "{name:?}");
            assert_eq!([flag(sampler, TDD, &s), flag(sampler, KNOWS, &s), flag(none, MDD, &s)], [None; 3], "{name:?}");
        }
        // One setting that heeds it is enough.
        let mixed = [setting(Confident, Ddim, 0.0), setting(Confident, Multinomial, 0.0)];
        assert_eq!([unmask, guesses, schedule].map(|g| flag(g, KNOWS, &mixed)), [None; 3]);
        assert_eq!(flag(schedule, KNOWS, &mixed[1..]), Some("--schedule"));
        assert_eq!(flag(schedule, KNOWS, &[mixed[1].clone(), settles[0].clone()]), None);
    }
}
