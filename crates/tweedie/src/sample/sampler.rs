//! Samplers: what a step does with a prediction.

use super::confident::Confident;
use super::staggered::Staggered;
use super::state::{Clean, Prediction, State};
use crate::config::{PosteriorMean, SampleConfig, SamplerKind};
use crate::error::Result;
use crate::process::{Process, Times, Update};

/// From a prediction about y_t to y_s. The built-in samplers are of a few lines each and go through the same calls as one of your
/// own:
///
/// ```
/// use tweedie::process::Times;
/// use tweedie::sample::{Mix, Prediction, Sampler, State};
/// use tweedie::{Result, Update};
///
/// /// Argmax and re-noise, but only where the network is sure: other tokens start again from pure noise.
/// struct Patient {
///     from: f32,
/// }
///
/// impl Sampler for Patient {
///     fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
///         let clean = prediction.argmax()?;
///         let (sure, noise) = (state.process().renoise(at.s), Update { clean: 0.0, keep: 0.0, noise: 1.0 });
///         let of = |log_p: &f32| if log_p.exp() >= self.from { sure } else { noise };
///         let each = clean.log_probs()?.iter().map(of).collect();
///         state.update(&clean, Mix::Each(each))
///     }
/// }
/// ```
///
/// Fixed tokens, lengths and marks that may not be written are kept by [`Prediction`], whatever the sampler does.
pub trait Sampler {
    /// Take the step `at`, by [`State::renoise`] or [`State::update`]. It is called for the last step too (`at.s` = 0), where what it
    /// hands to those is the result.
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()>;

    /// The steps that it takes instead of the `planned` ones, at times 1 to T and the last one to 0; by default those.
    fn steps(&self, planned: Vec<Times>) -> Vec<Times> {
        planned
    }

    /// Whether it looks at log-probabilities ([`super::Clean::log_probs`]). By default it does; where it
    /// says that it does not, steps are a little faster.
    fn reads_log_probs(&self) -> bool {
        true
    }

    /// Whether a run of it may be captured as a CUDA graph and replayed for other examples: only where it reads nothing back from
    /// the device and keeps nothing to itself. By default not.
    fn is_capturable(&self) -> bool {
        false
    }
}

/// What stands for the clean vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Estimate {
    Argmax,
    Drawn,
    Mean,
}

/// The samplers of one linear update: an estimate of the clean vector, and y_s by a rule of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linear {
    pub estimate: Estimate,
    rule: Rule,
}

/// The true reverse process, with the mean of the prediction.
#[cfg(test)]
pub(super) const ANCESTRAL: Linear = Linear { estimate: Estimate::Mean, rule: Rule::Reverse };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Renoise,
    Ddim,
    Reverse,
}

impl Linear {
    /// What stands for the clean vector at a step, the last one or another.
    pub fn estimate(self, last: bool) -> Estimate {
        match self.estimate {
            // The process that the bound is about draws its last token.
            Estimate::Mean if self.rule == Rule::Reverse && last => Estimate::Drawn,
            estimate => estimate,
        }
    }

    /// The estimate at the last step or another.
    pub fn choose(self, prediction: &Prediction, last: bool) -> Result<Clean> {
        match self.estimate(last) {
            Estimate::Argmax => prediction.argmax(),
            Estimate::Drawn => prediction.draw(),
            Estimate::Mean => prediction.mean(),
        }
    }

    /// From y_t and the estimate to y_s.
    pub fn update(self, process: &Process, at: Times) -> Update {
        match self.rule {
            Rule::Renoise => process.renoise(at.s),
            Rule::Ddim => process.ddim(at),
            Rule::Reverse => process.reverse(at),
        }
    }

    /// Whether y_s depends on more than the tokens that the step came to.
    pub fn carries(self) -> bool {
        self.estimate == Estimate::Mean || self.rule != Rule::Renoise
    }
}

impl Sampler for Linear {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        let clean = self.choose(prediction, at.s == 0)?;
        let update = self.update(state.process(), at);
        state.update(&clean, update.into())
    }

    fn reads_log_probs(&self) -> bool {
        false
    }

    fn is_capturable(&self) -> bool {
        true
    }
}

/// The sampler that settings name, for a denoiser with `per_token_time` or without.
pub fn sampler_of(config: &SampleConfig, per_token_time: bool) -> Box<dyn Sampler> {
    match BuiltIn::of(config, per_token_time) {
        BuiltIn::Linear(sampler) => Box::new(sampler),
        BuiltIn::Confident(sampler) => Box::new(sampler),
        BuiltIn::Staggered(sampler) => Box::new(sampler),
    }
}

/// The samplers there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BuiltIn {
    Linear(Linear),
    Confident(Confident),
    Staggered(Staggered),
}

impl BuiltIn {
    /// The linear one that makes its steps; none where tokens are committed.
    pub fn linear(self) -> Option<Linear> {
        match self {
            BuiltIn::Linear(linear) | BuiltIn::Staggered(Staggered { linear, .. }) => Some(linear),
            BuiltIn::Confident(_) => None,
        }
    }

    /// From y_t to y_s of the token at `place`; of tokens that are not committed, where some are.
    pub fn update(self, process: &Process, address: (u64, u32), place: usize, at: Times) -> Update {
        match self {
            BuiltIn::Linear(linear) => linear.update(process, at),
            BuiltIn::Confident(_) => process.renoise(at.s),
            BuiltIn::Staggered(path) => path.update(process, path.start(process, address, place), at),
        }
    }

    /// The time of that token where the way as a whole is at `t`.
    pub fn time(self, process: &Process, address: (u64, u32), place: usize, t: usize) -> usize {
        match self {
            BuiltIn::Staggered(path) => path.time(process, path.start(process, address, place), t),
            _ => t,
        }
    }

    /// That of settings, for a denoiser with `per_token_time` or without.
    pub fn of(config: &SampleConfig, per_token_time: bool) -> BuiltIn {
        if per_token_time && config.commits() {
            let drawn = config.sampler == SamplerKind::Multinomial;
            return BuiltIn::Confident(Confident {
                drawn,
                uncommitted: config.uncommitted,
                correction: config.correction,
            });
        }
        let linear = linear_of(config);
        match per_token_time && config.stagger > 1 {
            true => BuiltIn::Staggered(Staggered { linear, length: config.stagger }),
            false => BuiltIn::Linear(linear),
        }
    }
}

fn linear_of(config: &SampleConfig) -> Linear {
    let (estimate, rule) = match config.sampler {
        SamplerKind::Argmax => (Estimate::Argmax, Rule::Renoise),
        SamplerKind::Multinomial => (Estimate::Drawn, Rule::Renoise),
        SamplerKind::Softmax => (Estimate::Mean, Rule::Renoise),
        SamplerKind::Ddim => (Estimate::Mean, Rule::Ddim),
        SamplerKind::Ancestral => {
            let estimate = match config.posterior_mean {
                PosteriorMean::Soft => Estimate::Mean,
                PosteriorMean::Argmax => Estimate::Argmax,
                PosteriorMean::Drawn => Estimate::Drawn,
            };
            (estimate, Rule::Reverse)
        }
    };
    Linear { estimate, rule }
}
