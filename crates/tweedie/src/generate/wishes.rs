//! What somebody asks of a sampler, laid over the settings of the run: one way for the command and for the server. What means nothing
//! for a model is refused: no answer should seem to heed it. What the run's own settings say is left alone, however little it means.

use std::fmt;

use crate::config::{MOST_STAGGER, Rank, SampleConfig, SamplerKind, Unmasking};
use crate::limits::within;
use crate::model::Model;
use crate::schedule::ScheduleKind;

/// What of a model decides which wishes have a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Of noise, not of masks.
    pub tdd: bool,
    /// TDD that was trained with clean or staggered tokens.
    pub per_token_time: bool,
    /// It is told something: an image.
    pub conditional: bool,
}

impl Facts {
    /// Those of a model.
    pub fn of(model: &Model) -> Facts {
        Facts { tdd: model.is_tdd(), per_token_time: model.per_token_time(), conditional: model.is_conditional() }
    }
}

/// Why a wish is refused, in the spelling of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the setting.
    pub field: &'static str,
    message: String,
}

impl Refusal {
    /// What `flag` (as "--unmask" or "--unmask confident") asks for changes nothing.
    fn meaningless(flag: &'static str, why: &str) -> Refusal {
        let name = flag.trim_start_matches('-').split(' ').next().unwrap_or_default();
        Refusal { field: name, message: format!("{flag} has no meaning here: {why}") }
    }

    /// The same, in the spelling of a request's fields.
    pub fn in_fields(&self) -> String {
        self.message.replace("--", "")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// What is asked of a sampler; the rest is as the run has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// Sampling steps.
    pub steps: Option<usize>,
    /// Guidance weight.
    pub guidance: Option<f32>,
    /// How a noisy vector becomes the next one.
    pub sampler: Option<SamplerKind>,
    /// Which tokens are committed first.
    pub unmask: Option<Unmasking>,
    /// What TDD shows of tokens that are not committed.
    pub uncommitted: Option<f32>,
    /// Share of committed tokens that a step takes back.
    pub correction: Option<f32>,
    /// How many times as long as a token's own the way is on which tokens start one after another.
    pub stagger: Option<usize>,
    /// Noise levels of another schedule.
    pub schedule: Option<String>,
    /// Start of the sampling noise.
    pub seed: Option<u64>,
    /// Texts, of which the best is kept.
    pub candidates: Option<usize>,
    /// Which is the best.
    pub rank: Option<Rank>,
    /// Whether a class is chosen by the mean of the logits of all steps so far.
    pub running_mean: Option<bool>,
    /// Draws of a classifier, of which the majority counts.
    pub votes: Option<usize>,
}

impl Wishes {
    /// The settings that come of them, or the first that cannot be.
    pub fn over(&self, own: &SampleConfig, of: Facts) -> Result<SampleConfig, Refusal> {
        let sample = SampleConfig {
            steps: self.steps.unwrap_or(own.steps),
            guidance: self.guidance.unwrap_or(own.guidance),
            sampler: self.sampler.unwrap_or(own.sampler),
            unmask: self.unmask.unwrap_or(own.unmask),
            uncommitted: self.uncommitted.unwrap_or(own.uncommitted),
            correction: self.correction.unwrap_or(own.correction),
            stagger: self.stagger.unwrap_or(own.stagger),
            schedule: self.schedule.clone().unwrap_or_else(|| own.schedule.clone()),
            seed: self.seed.unwrap_or(own.seed),
            candidates: self.candidates.unwrap_or(own.candidates),
            rank: self.rank.unwrap_or(own.rank),
            running_mean: self.running_mean.unwrap_or(own.running_mean),
            votes: self.votes.unwrap_or(own.votes),
            ..own.clone()
        };
        self.check(&sample, of)?;
        let used = UsedFlags {
            sampler: self.sampler.is_some(),
            unmask: self.unmask.is_some(),
            uncommitted: self.uncommitted.is_some(),
            correction: self.correction.is_some(),
            stagger: self.stagger.is_some(),
            schedule: self.schedule.is_some(),
        };
        used.check(of, std::slice::from_ref(&sample)).map(|()| sample)
    }

    fn check(&self, s: &SampleConfig, of: Facts) -> Result<(), Refusal> {
        if !of.conditional && self.guidance.is_some_and(|g| g != 1.0) {
            let message = "--guidance needs an image to guide to; leave it out for text alone".into();
            return Err(Refusal { field: "guidance", message });
        }
        let refused = |field| move |message| Refusal { field, message };
        within("--steps", s.steps, 1..=100_000).map_err(refused("steps"))?;
        within("--candidates", s.candidates, 1..=1 << 16).map_err(refused("candidates"))?;
        within("--votes", s.votes, 1..=1 << 16).map_err(refused("votes"))?;
        within("--guidance", s.guidance, -1e3..=1e3).map_err(refused("guidance"))?;
        within("--uncommitted", s.uncommitted, 0.0..=1.0).map_err(refused("uncommitted"))?;
        within("--correction", s.correction, 0.0..1.0).map_err(refused("correction"))?;
        within("--stagger", s.stagger, 0..=MOST_STAGGER).map_err(refused("stagger"))?;
        match self.schedule.as_deref().map(str::parse::<ScheduleKind>) {
            Some(Err(e)) => Err(Refusal { field: "schedule", message: e.to_string() }),
            _ => Ok(()),
        }
    }
}

const COMMITS_NONE: &str = "this model commits no token before the end (see train.clean_tokens)";

/// Which of them the user used.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsedFlags {
    /// `--sampler`.
    pub sampler: bool,
    /// `--unmask`.
    pub unmask: bool,
    /// `--uncommitted`.
    pub uncommitted: bool,
    /// `--correction`.
    pub correction: bool,
    /// `--stagger`.
    pub stagger: bool,
    /// `--schedule`.
    pub schedule: bool,
}

impl UsedFlags {
    /// Refuse those that change nothing in any of the `settings` that came of them.
    pub fn check(self, of: Facts, settings: &[SampleConfig]) -> Result<(), Refusal> {
        match self.idle(of, settings) {
            Some((flag, why)) => Err(Refusal::meaningless(flag, why)),
            None => Ok(()),
        }
    }

    /// The first flag that changes nothing, and why; of the masked twin, or of TDD with per-token time or without.
    fn idle(self, of: Facts, settings: &[SampleConfig]) -> Option<(&'static str, &'static str)> {
        let Facts { tdd, per_token_time: per_token, .. } = of;
        let none_commits = per_token && !settings.iter().any(SampleConfig::commits);
        let confident = settings.iter().any(|s| s.unmask == Unmasking::Confident);
        let commit =
            "no token is committed before the end; that takes --unmask confident and --sampler argmax or multinomial";
        let few_steps = settings.iter().all(|s| s.steps < 3) && settings.iter().any(|s| s.correction > 0.0);
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
            (self.uncommitted && none_commits, "--uncommitted", commit),
            (self.correction && tdd && !per_token, "--correction", COMMITS_NONE),
            (self.correction && none_commits, "--correction", commit),
            (
                self.stagger && !per_token,
                "--stagger",
                "tokens have times of their own in TDD trained with train.stagger or train.clean_tokens",
            ),
            (
                self.stagger && settings.iter().all(SampleConfig::commits),
                "--stagger",
                "tokens are committed by how sure they are; --unmask random has them start by chance",
            ),
            (
                self.correction && few_steps,
                "--correction",
                "tokens are taken back between the first step and the last; that takes --steps 3 or more",
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

    const PER_TOKEN: Facts = Facts { tdd: true, per_token_time: true, conditional: true };
    const TDD: Facts = Facts { tdd: true, per_token_time: false, conditional: true };
    const MDD: Facts = Facts { tdd: false, per_token_time: false, conditional: true };

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
        let correction = UsedFlags { correction: true, ..none };
        let corrects =
            |unmask, sampler, steps| SampleConfig { correction: 0.1, steps, ..setting(unmask, sampler, 0.0) };
        let [few, many] = [2, 3].map(|steps| corrects(Confident, Argmax, steps));
        for (model, settings, refused) in [
            (PER_TOKEN, vec![many.clone()], false),
            (PER_TOKEN, vec![few.clone(), many.clone()], false),
            (PER_TOKEN, vec![few.clone()], true),
            (PER_TOKEN, vec![corrects(Random, Argmax, 10)], true),
            (PER_TOKEN, vec![corrects(Confident, Ddim, 10)], true),
            (TDD, vec![many.clone()], true),
            (MDD, vec![many.clone()], false),
            (MDD, vec![corrects(Random, Argmax, 10)], false),
            (MDD, vec![few.clone()], true),
        ] {
            let want = refused.then_some("--correction");
            assert_eq!(flag(correction, model, &settings), want, "{model:?} {settings:?}");
            assert_eq!(flag(none, model, &settings), None, "the run's own settings are not refused");
        }
        let stagger = UsedFlags { stagger: true, ..none };
        assert_eq!([TDD, MDD].map(|model| flag(stagger, model, &random)), [Some("--stagger"); 2]);
        assert_eq!([&random[..], &commits].map(|s| flag(stagger, PER_TOKEN, s)), [None, Some("--stagger")]);
        // One setting that heeds it is enough.
        let mixed = [setting(Confident, Ddim, 0.0), setting(Confident, Multinomial, 0.0)];
        assert_eq!([unmask, uncommitted, schedule].map(|g| flag(g, PER_TOKEN, &mixed)), [None; 3]);
        assert_eq!(flag(schedule, PER_TOKEN, &mixed[1..]), Some("--schedule"));
        assert_eq!(flag(schedule, PER_TOKEN, &[mixed[1].clone(), commits[0].clone()]), None);
    }

    #[test]
    fn wishes_are_laid_over_the_settings_of_the_run() {
        let own = SampleConfig { steps: 20, guidance: 2.0, ..SampleConfig::default() };
        assert_eq!(Wishes::default().over(&own, TDD).unwrap(), own);
        let asked = Wishes { steps: Some(5), seed: Some(7), ..Wishes::default() };
        assert_eq!(asked.over(&own, TDD).unwrap(), SampleConfig { steps: 5, seed: 7, ..own.clone() });
        let refused = |w: Wishes, of| w.over(&own, of).unwrap_err();
        let none = Wishes::default;
        let e = refused(Wishes { uncommitted: Some(2.0), ..none() }, PER_TOKEN);
        assert_eq!((e.field, e.to_string().as_str()), ("uncommitted", "--uncommitted = 2 must lie in [0, 1]"));
        assert_eq!(e.in_fields(), "uncommitted = 2 must lie in [0, 1]");
        let e = refused(Wishes { correction: Some(1.0), ..none() }, PER_TOKEN);
        assert_eq!((e.field, e.to_string().as_str()), ("correction", "--correction = 1 must lie in [0, 1)"));
        assert_eq!(refused(Wishes { correction: Some(0.1), ..none() }, TDD).field, "correction");
        let e = refused(Wishes { stagger: Some(2000), ..none() }, PER_TOKEN);
        assert_eq!((e.field, e.to_string().as_str()), ("stagger", "--stagger = 2000 must lie in [0, 1024]"));
        assert_eq!(refused(Wishes { steps: Some(0), ..none() }, TDD).field, "steps");
        assert_eq!(refused(Wishes { guidance: Some(f32::NAN), ..none() }, TDD).field, "guidance");
        assert_eq!(refused(Wishes { schedule: Some("steep".into()), ..none() }, TDD).field, "schedule");
        assert_eq!(refused(Wishes { unmask: Some(Unmasking::Random), ..none() }, TDD).field, "unmask");
        let text = Facts { conditional: false, ..TDD };
        assert_eq!(refused(Wishes { guidance: Some(3.0), ..none() }, text).field, "guidance");
        assert!(Wishes { guidance: Some(1.0), ..none() }.over(&own, text).is_ok());
    }
}
