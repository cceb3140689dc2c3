//! Flags of samplers of sequences that mean nothing for a model are refused: no answer should seem to heed them. What the run's
//! own settings say is left alone, however little it means.

use tweedie::config::{SampleConfig, SamplerKind, Unmasking};
use tweedie::model::Model;

use crate::failure::{Failure, Result};

/// A flag that is used though it has no meaning.
pub fn meaningless(flag: &str, why: &str) -> Failure {
    Failure::input(format!("{flag} has no meaning here: {why}"))
}

/// Which flags the user used.
#[derive(Clone, Copy, Default)]
pub struct UsedFlags {
    pub sampler: bool,
    pub unmask: bool,
    pub uncommitted: bool,
    pub schedule: bool,
}

impl UsedFlags {
    /// Refuse those that change nothing in any of the `settings` that came of them.
    pub fn check(self, model: &Model, settings: &[SampleConfig]) -> Result<()> {
        match self.idle((model.is_tdd(), model.per_token_time()), settings) {
            Some((flag, why)) => Err(meaningless(flag, why)),
            None => Ok(()),
        }
    }

    /// The first flag that changes nothing, and why; of the masked twin, or of TDD with per-token time or without.
    fn idle(self, (tdd, per_token): (bool, bool), settings: &[SampleConfig]) -> Option<(&'static str, &'static str)> {
        let none_commits = per_token && !settings.iter().any(SampleConfig::commits);
        let confident = settings.iter().any(|s| s.unmask == Unmasking::Confident);
        let all_noise = per_token && settings.iter().all(|s| s.commits() && s.uncommitted == 0.0);
        let of_noise = settings.iter().any(|s| matches!(s.sampler, SamplerKind::Softmax | SamplerKind::Ddim));
        let all = [
            (
                self.sampler && !tdd && of_noise,
                "--sampler softmax or ddim",
                "they step between noisy vectors, and MDD has masked tokens: --unmask random or confident, with --sampler \
                 argmax or multinomial",
            ),
            (self.unmask && tdd && !per_token, "--unmask", "this model masks nothing (see train.clean_tokens)"),
            (self.uncommitted && !per_token, "--uncommitted", "it goes with TDD trained with train.clean_tokens"),
            (self.schedule && !tdd, "--schedule", "masking has no noise levels"),
            (
                self.unmask && confident && none_commits,
                "--unmask confident",
                "this sampler commits no tokens, argmax and multinomial do",
            ),
            (
                self.uncommitted && none_commits,
                "--uncommitted",
                "no token is committed before the end; that takes --unmask confident and --sampler argmax or multinomial",
            ),
            (
                self.schedule && all_noise,
                "--schedule",
                "tokens that are not committed are pure noise at every step; --uncommitted above 0 gives them noise levels",
            ),
        ];
        all.into_iter().find(|f| f.0).map(|(_, flag, why)| (flag, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PER_TOKEN: (bool, bool) = (true, true);
    const TDD: (bool, bool) = (true, false);
    const MDD: (bool, bool) = (false, false);

    fn setting(unmask: Unmasking, sampler: SamplerKind, uncommitted: f32) -> SampleConfig {
        SampleConfig { unmask, sampler, uncommitted, ..SampleConfig::default() }
    }

    #[test]
    fn a_flag_that_changes_nothing_is_refused() {
        use SamplerKind::{Ancestral, Argmax, Ddim, Multinomial, Softmax};
        use Unmasking::{Confident, Random};
        let flag = |used: UsedFlags, model, settings: &[SampleConfig]| used.idle(model, settings).map(|f| f.0);
        let none = UsedFlags::default();
        let (unmask, uncommitted) = (UsedFlags { unmask: true, ..none }, UsedFlags { uncommitted: true, ..none });
        let schedule = UsedFlags { schedule: true, ..none };
        let commits = [setting(Confident, Argmax, 0.5)];
        for (model, want) in [
            (PER_TOKEN, [None, None, None]),
            (TDD, [Some("--unmask"), Some("--uncommitted"), None]),
            (MDD, [None, Some("--uncommitted"), Some("--schedule")]),
        ] {
            assert_eq!([unmask, uncommitted, schedule].map(|g| flag(g, model, &commits)), want, "{model:?}");
        }
        let random = [0.0, 0.5, 1.0].map(|g| setting(Random, Argmax, g));
        assert_eq!(flag(UsedFlags { unmask: true, ..uncommitted }, PER_TOKEN, &random), Some("--uncommitted"));
        assert_eq!(flag(unmask, PER_TOKEN, &random[..1]), None, "random turns off what the run's settings say");
        for sampler in [Ddim, Softmax, Ancestral] {
            let s = [setting(Confident, sampler, 0.0)];
            assert_eq!(flag(unmask, PER_TOKEN, &s), Some("--unmask confident"), "{sampler:?}");
            assert_eq!(flag(uncommitted, PER_TOKEN, &s), Some("--uncommitted"), "{sampler:?}");
            assert_eq!(flag(schedule, PER_TOKEN, &s), None, "{sampler:?}");
            assert_eq!(flag(none, PER_TOKEN, &s), None, "the run's own settings are not refused");
        }
        let sampler = UsedFlags { sampler: true, ..none };
        for (name, of_noise) in
            [(Argmax, false), (Multinomial, false), (Ancestral, false), (Softmax, true), (Ddim, true)]
        {
            let s = [setting(Random, Argmax, 0.0), setting(Random, name, 0.0)];
            assert_eq!(flag(sampler, MDD, &s), of_noise.then_some("--sampler softmax or ddim"), "{name:?}");
            assert_eq!(
                [flag(sampler, TDD, &s), flag(sampler, PER_TOKEN, &s), flag(none, MDD, &s)],
                [None; 3],
                "{name:?}"
            );
        }
        // One setting that heeds it is enough.
        let mixed = [setting(Confident, Ddim, 0.0), setting(Confident, Multinomial, 0.0)];
        assert_eq!([unmask, uncommitted, schedule].map(|g| flag(g, PER_TOKEN, &mixed)), [None; 3]);
        assert_eq!(flag(schedule, PER_TOKEN, &mixed[1..]), Some("--schedule"));
        assert_eq!(flag(schedule, PER_TOKEN, &[mixed[1].clone(), commits[0].clone()]), None);
    }
}
