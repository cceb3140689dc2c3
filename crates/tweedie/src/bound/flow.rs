//! The likelihood of the deterministic flow, the probability-flow ODE that `ddim` takes steps along. Posterior steps pay for each of their
//! steps apart; the flow is one change of variables, and only where it ends counts.
//!
//! In units of its noise a noisy vector is w = u·y_0 + ε, with u = √SNR. The flow is dw/du = p(w), the prediction: a text's noisy vectors at
//! the first time are carried back to pure noise, whose density is known, and the density changes by the divergence of p on the way:
//!
//!   −ln P(text) ≤ E_ε\[ ½‖w_T‖² − ½‖ε‖² + ∫ div p du − ln p(text|w_1) \].
//!
//! It is a bound since the noise ε of the first vector is one of many that lead to the text (variational dequantisation, Ho et al. 2019).
//! The divergence is estimated without bias by central differences along random signs (Hutchinson), and what one token's own vector adds to
//! their spread is taken out. What is left is the error of taking finite steps, which more of them make smaller.

use rayon::prelude::*;
use tweedie_engine::{Device, Noise, Tensor, rng};

use super::{Bounds, MASKS, STREAM, TokenBatch, uniform};
use crate::config::NoiseKind;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::loss::{staggered, start_of};
use crate::process::Process;
use crate::sample::{At, Denoise, Projection, TokenTimes, softmax};

/// Stream of the random signs.
const SIGNS: u32 = 0xb0d4;

/// How far a difference reaches to each side: so far in the logits that the token's own vector speaks for, and at most so far in units of the
/// noise. A trained network gives .0004 bits per character more with a quarter of this, .002 less with two and a half times as much.
const REACH: f64 = 0.02;

fn reach(level: f64) -> f64 {
    REACH / level.max(1.0)
}

/// The fewest steps for the way of one token: with fewer the error of a step can be larger than what there is to measure.
const LEAST: usize = 16;

/// The bound of the flow, by the shared time or where tokens start one after another. It is a bound up to the error of its steps: take so many
/// that twice as many say the same. The denoiser of a network is [`Conditioned`](crate::sample::Conditioned). One noise is drawn for each text, so that an
/// example's own error is not known and told as 0; over several texts [`Bounds::per_token`] has that of the mean.
#[derive(Clone, Copy, Debug)]
pub struct FlowBound<'a> {
    /// The process of one token.
    pub process: &'a Process,
    /// How many times as long as that the path is; 1: all tokens have one time.
    pub stagger: usize,
    /// Steps, at least 16 for each of those times; each costs two passes of the denoiser over the batch.
    pub steps: usize,
    /// Start of the noise, of the signs and of the order.
    pub seed: u64,
}

/// Where all tokens of a batch are at one moment.
struct Moment {
    times: Vec<u32>,
    /// u = √SNR of each.
    level: Vec<f64>,
}

/// What is known of the flow at one moment.
struct Seen {
    /// p, \[B·N·V\].
    p: Vec<f32>,
    /// The divergence, a share for each token.
    divergence: Vec<f64>,
}

impl FlowBound<'_> {
    /// Steps that are enough for a trained model along such a path.
    pub fn usual_steps(stagger: usize) -> usize {
        4 * LEAST * stagger
    }

    /// The bounds of tokens.
    pub fn of(&self, denoiser: &dyn Denoise, batch: &TokenBatch) -> Result<Bounds> {
        let (b, n, v) = (batch.check()?, batch.n, batch.vocab);
        let least = LEAST * self.stagger;
        if self.steps < least || least == 0 {
            let what = "steps are too few for the flow, whose error is that of its steps";
            return Err(Error::Input(format!(
                "{} {what}: a path of length {} takes {least} or more",
                self.steps, self.stagger
            )));
        }
        if denoiser.vocab() != v {
            return Err(Error::Input(format!("the denoiser knows {} classes, the tokens have {v}", denoiser.vocab())));
        }
        let device = denoiser.device();
        let projection = Projection::of(denoiser, NoiseKind::Dense)?;
        let looks = Looks { flow: self, denoiser, projection, device: &device, batch };
        let begins: Vec<usize> = (0..b * n).map(|i| self.begin(batch.examples[i / n], i % n)).collect();
        let whole = self.stagger * self.process.steps();
        let moments = (1..=self.steps).map(|j| whole * j / self.steps).filter(|m| *m > Process::FIRST);

        let eps = Noise::new(&device, self.seed, STREAM, 0)?;
        let ids = Tensor::from_u32(&device, &[b], batch.examples.to_vec())?;
        let mut w = eps.normal(&ids, n * v)?.to_vec()?;
        let half_square =
            |w: &[f32], i: usize| 0.5 * w[i * v..][..v].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let mut nats: Vec<f64> = (0..b * n).map(|i| -half_square(&w, i)).collect();

        let mut at = self.moment(&begins, Process::FIRST);
        let own = |i: usize| i * v + batch.tokens[i] as usize;
        (0..b * n).for_each(|i| w[own(i)] += at.level[i] as f32);
        let p = looks.predict(&w, &at)?;
        (0..b * n).for_each(|i| nats[i] -= f64::from(p[own(i)]).max(f64::MIN_POSITIVE).ln());

        // w by Adams and Bashforth's rule of two steps, of which the first has one, and the divergence by the trapezoidal rule.
        let (mut seen, mut rate) = (looks.look(&w, &at, 0)?, vec![0.0; b * n * v]);
        for (j, moment) in moments.enumerate() {
            interrupt::check()?;
            let next = self.moment(&begins, moment);
            let step: Vec<f64> = at.level.iter().zip(&next.level).map(|(from, to)| from - to).collect();
            for (k, w) in w.iter_mut().enumerate() {
                *w -= (step[k / v] * (f64::from(seen.p[k]) + 0.5 * step[k / v] * rate[k])) as f32;
            }
            let now = looks.look(&w, &next, j as u32 + 1)?;
            for i in 0..b * n {
                nats[i] += 0.5 * step[i] * (seen.divergence[i] + now.divergence[i]);
            }
            for (k, rate) in rate.iter_mut().enumerate() {
                *rate = if step[k / v] > 0.0 { f64::from(now.p[k] - seen.p[k]) / step[k / v] } else { 0.0 };
            }
            (at, seen) = (next, now);
        }
        (0..b * n).for_each(|i| nats[i] += half_square(&w, i));
        let tokens = batch.each(|i| nats[i]);
        Ok(Bounds::new(&[vec![0.0; b]], |e| batch.sum(e, |i| nats[i]), tokens, batch))
    }

    /// After which moment a token is on its way.
    fn begin(&self, example: u32, place: usize) -> usize {
        start_of(uniform(self.seed, [place as u32, example, 0, MASKS]), (self.process.steps(), self.stagger))
    }

    fn moment(&self, begins: &[usize], moment: usize) -> Moment {
        let times: Vec<u32> = begins.iter().map(|begin| staggered(moment, *begin, self.process.steps())).collect();
        let level = times.iter().map(|t| self.process.snr(*t as usize).sqrt()).collect();
        Moment { times, level }
    }
}

/// What a denoiser says of vectors.
struct Looks<'a> {
    flow: &'a FlowBound<'a>,
    denoiser: &'a dyn Denoise,
    projection: Projection,
    device: &'a Device,
    batch: &'a TokenBatch<'a>,
}

impl Looks<'_> {
    /// p of `w`, \[B·N·V\].
    fn predict(&self, w: &[f32], at: &Moment) -> Result<Vec<f32>> {
        let (b, n, v) = (self.batch.examples.len(), self.batch.n, self.batch.vocab);
        let spread = |i: usize| self.flow.process.spread(at.times[i / v] as usize) as f32;
        let y = w.iter().enumerate().map(|(i, w)| spread(i) * w).collect();
        let y = self.projection.project(&Tensor::from_f32(self.device, &[b, n, v], y)?)?;
        let all: Vec<usize> = (1..=self.flow.process.steps()).collect();
        let logits = match self.flow.stagger {
            1 => self.denoiser.logits(&y, (at.times[0] as usize).into())?,
            _ => {
                let which = &Tensor::from_u32(self.device, &[b, n], at.times.clone())?;
                self.denoiser
                    .logits(&y, At { t: self.flow.process.steps(), tokens: Some(TokenTimes { which, times: &all }) })?
            }
        };
        let (width, l) = (logits.width(), logits.to_vec()?);
        if logits.len() / width.max(1) != b * n || width < v {
            return Err(Error::Input(format!(
                "a denoiser's logits must be {:?}, they are {:?}",
                [b, n, v],
                logits.shape()
            )));
        }
        Ok(l.par_chunks_exact(width).flat_map_iter(|row| softmax(&row[..v]).into_iter().map(|p| p as f32)).collect())
    }

    /// p and its divergence.
    fn look(&self, w: &[f32], at: &Moment, draw: u32) -> Result<Seen> {
        let (n, v, key) = (self.batch.n, self.batch.vocab, [self.flow.seed as u32, (self.flow.seed >> 32) as u32]);
        // A bit of each word: 128 signs at a time.
        let signs: Vec<f32> = (0..self.batch.tokens.len())
            .into_par_iter()
            .flat_map_iter(|i| {
                let (example, place) = (self.batch.examples[i / n], (i % n) as u32);
                (0..v.div_ceil(128) as u32)
                    .flat_map(move |block| {
                        let words = rng::philox([place, example, block, SIGNS ^ (draw << 16)], key);
                        (0..128).map(move |k| if words[k / 32] >> (k % 32) & 1 == 1 { 1.0 } else { -1.0 })
                    })
                    .take(v)
            })
            .collect();
        let moved = |to: f32| -> Vec<f32> {
            let by = |i: usize| to * reach(at.level[i / v]) as f32;
            w.iter().zip(&signs).enumerate().map(|(i, (w, s))| w + by(i) * s).collect()
        };
        let (plus, minus) = (self.predict(&moved(1.0), at)?, self.predict(&moved(-1.0), at)?);
        let p: Vec<f32> = plus.iter().zip(&minus).map(|(a, b)| 0.5 * (a + b)).collect();
        let of = |i: usize| {
            let row = i * v..(i + 1) * v;
            let (mut along, mut dot, mut square) = (0.0, 0.0, 0.0);
            for k in row {
                let (s, q) = (f64::from(signs[k]), f64::from(p[k]));
                along += s * f64::from(plus[k] - minus[k]);
                dot += s * q;
                square += q * q;
            }
            // Of a token alone the derivative is u·(diag p − p·pᵀ), whose trace is known.
            along / (2.0 * reach(at.level[i])) + at.level[i] * (dot * dot - square)
        };
        Ok(Seen { divergence: (0..self.batch.tokens.len()).into_par_iter().map(of).collect(), p })
    }
}
