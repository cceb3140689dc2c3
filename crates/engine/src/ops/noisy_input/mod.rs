//! The input layer of a one-hot diffusion model: W·y_t + b with y_t = signal·onehot(token) + spread·ε. The vectors y_t have
//! the width of the vocabulary; on the GPU, unless there is room for them, they live only while the product runs and are drawn
//! again for the backward pass.

mod cpu;
mod cuda;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::error::{Result, ensure};
use crate::rng::Noise;
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::{DType, Tensor};

crate::cuda::source!("noisy_input.cu");

const OP: &str = "noisy_input";

/// Where ε comes from.
#[derive(Clone)]
pub enum Eps {
    /// Drawn: token n of an example uses the words n·⌈V/4⌉… of that example's stream.
    Drawn {
        /// The stream.
        noise: Noise,
        /// Example ids, u32 \[B\].
        examples: Tensor,
    },
    /// Given, f32 \[B, N, V\].
    Given(Tensor),
}

/// Corrupted tokens: the recipe for y_t, not its values.
#[derive(Clone)]
pub struct NoisyTokens {
    /// Token ids, u32 \[B, N\].
    pub tokens: Tensor,
    /// Factor of the one-hot vector (√ᾱ_t, times λ for λ-hot labels): f32 \[B\], or \[B, N\] with one for each token.
    pub signal: Tensor,
    /// Factor of the noise (√(1−ᾱ_t)), of the same shape.
    pub spread: Tensor,
    /// The noise.
    pub eps: Eps,
    /// Number of classes V.
    pub vocab: usize,
}

impl NoisyTokens {
    fn check(&self) -> Result<(usize, usize)> {
        let &[b, n] = self.tokens.shape() else {
            return Err(crate::Error::op(OP, format!("tokens must be [B, N], they are {:?}", self.tokens.shape())));
        };
        let (v, t) = (self.vocab, &self.tokens);
        check::integers(OP, "tokens", t, t)?;
        ensure!(b * n * v.min(1) > 0, OP, "tokens {:?} of {v} classes are nothing to compute on", t.shape());
        check::elements(OP, &[b, n, v])?;
        check::f32s(OP, "signal", &self.signal, t)?;
        check::f32s(OP, "spread", &self.spread, t)?;
        ensure!(
            (self.signal.shape() == [b] || self.signal.shape() == [b, n]) && self.spread.shape() == self.signal.shape(),
            OP,
            "signal {:?} and spread {:?} must both be [{b}] or [{b}, {n}]",
            self.signal.shape(),
            self.spread.shape()
        );
        match &self.eps {
            Eps::Drawn { noise, examples } => {
                noise.check(OP, b, t)?;
                check::integers(OP, "example ids", examples, t)?;
                ensure!(examples.shape() == [b], OP, "example ids {:?} must be [{b}]", examples.shape());
                ensure!(n * v.div_ceil(4) <= u32::MAX as usize, OP, "{n} tokens of {v} classes are too many");
            }
            Eps::Given(e) => {
                check::f32s(OP, "eps", e, t)?;
                ensure!(e.shape() == [b, n, v], OP, "eps {:?} must be [{b}, {n}, {v}]", e.shape());
            }
        }
        if self.tokens.cuda_device().is_none()
            && let Some((i, t)) = self.tokens.u32s().iter().enumerate().find(|(_, t)| **t as usize >= v)
        {
            return Err(crate::Error::op(OP, format!("token {t} at position {i} is not below the vocabulary {v}")));
        }
        Ok((b, n))
    }

    /// Tokens that share a factor: those of an example, or each has its own.
    fn sharing(&self) -> usize {
        if self.signal.shape().len() == 2 { 1 } else { self.tokens.shape()[1] }
    }

    /// The vectors y_t themselves, \[B, N, V\] in `dtype`.
    pub fn vectors(&self, dtype: DType) -> Result<Tensor> {
        let (b, n) = self.check()?;
        ensure!(dtype != DType::U32, OP, "the vectors of tokens {:?} are f32 or bf16, not u32", self.tokens.shape());
        match self.tokens.cuda_device() {
            Some(c) => {
                let y = Tensor::cuda(c, &[b, n, self.vocab], dtype)?;
                cuda::fill(c, self, 0, b * n, &y)?;
                Ok(y)
            }
            None => cpu::vectors(self, b, n).cast(dtype),
        }
    }
}

struct NoisyInput {
    from: NoisyTokens,
    w: Var,
    b: Var,
    /// y_t: all of it on the CPU, where drawing it again costs as much as the product; on a GPU its bands, or none, and they are
    /// drawn again.
    vectors: Vec<Tensor>,
}

/// W·y_t + b for every token: \[B, N, d\] in `dtype`, with `w` \[d, V\] and `b` \[d\].
pub fn noisy_input(tape: &Tape, from: &NoisyTokens, w: &Var, b: &Var, dtype: DType) -> Result<Var> {
    let (batch, n) = from.check()?;
    let &[d, v] = w.shape() else {
        return Err(crate::Error::op(OP, format!("the weight must be [d, V], it is {:?}", w.shape())));
    };
    ensure!(v == from.vocab, OP, "weight {:?} reads {v} classes, the tokens have {}", w.shape(), from.vocab);
    ensure!(b.shape() == [d] && d > 0, OP, "bias {:?} must be [{d}], and not empty", b.shape());
    check::f32s(OP, "the weight", w.value(), &from.tokens)?;
    check::f32s(OP, "the bias", b.value(), &from.tokens)?;
    check::compute_type(OP, w.value(), dtype)?;
    check::elements(OP, &[batch, n, d])?;
    let (y, vectors) = match w.value().cuda_device() {
        Some(c) => cuda::forward(c, tape, from, w, b, dtype, &[batch, n, d])?,
        None => {
            let vectors = cpu::vectors(from, batch, n);
            (cpu::forward(&vectors, w.value(), b.value(), &[batch, n, d]), vec![vectors])
        }
    };
    Ok(tape.record(y, &[w, b], || NoisyInput { from: from.clone(), w: w.clone(), b: b.clone(), vectors }))
}

impl Backward for NoisyInput {
    fn name(&self) -> &'static str {
        OP
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        match (dy.cuda_device(), &self.vectors[..]) {
            (Some(c), bands) => cuda::backward(c, &self.from, bands, &self.w, &self.b, dy, grads),
            (None, [vectors]) => cpu::backward(vectors, &self.w, &self.b, dy, grads),
            (None, _) => Err(crate::Error::op(OP, "a GPU forward pass cannot run backwards on the CPU")),
        }
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    // batch, tokens, vocabulary, width
    let dims: &[[usize; 4]] = match size {
        Size::Tiny => &[[2, 1, 5, 3], [1, 3, 4, 2]],
        Size::Full => {
            &[[1, 1, 1, 1], [12, 1, 10, 64], [3, 6, 50, 48], [2, 5, 1000, 192], [1, 4, 1000, 40], [1, 3, 30522, 32]]
        }
    };
    let mut out = Vec::new();
    for &[b, n, v, d] in dims {
        for (given, each) in [(false, false), (true, false), (false, true)] {
            let noise = if given { ", given noise" } else { "" };
            let label = format!("[{b}, {n}] of {v} → {d}{noise}{}", if each { ", a level for each token" } else { "" });
            let levels: &[usize] = if each { &[b, n] } else { &[b] };
            let case = Case::new("noisy_input", label, move |t, vars| {
                let device = vars[0].value().device();
                let ids = Tensor::from_u32(&device, &[b], (0..b as u32).map(|i| i + 5).collect())?;
                let eps = match given {
                    true => Eps::Given(vars[5].value().clone()),
                    false => Eps::Drawn { noise: Noise::new(&device, 11, 2, 3)?, examples: ids },
                };
                let from = NoisyTokens {
                    tokens: vars[2].value().clone(),
                    signal: vars[3].value().clone(),
                    spread: vars[4].value().clone(),
                    eps,
                    vocab: v,
                };
                if each {
                    // No room is left: the vectors are drawn again for the backward pass.
                    t.spares(usize::MAX / 2, usize::MAX);
                }
                // In the selftest the compute type follows that of an activation; here there is none but `like`.
                let dtype = vars[6 - !given as usize].value().dtype();
                noisy_input(t, &from, &vars[0], &vars[1], dtype)
            })
            .normal("w", Role::Weight, &[d, v], 1.0 / (v as f32).sqrt())
            .normal("b", Role::Weight, &[d], 1.0)
            .ids("tokens", &[b, n], v as u32)
            .normal("signal", Role::Data, levels, 1.0)
            .normal("spread", Role::Data, levels, 1.0);
            let case = if given { case.normal("eps", Role::Data, &[b, n, v], 1.0) } else { case };
            out.push(case.compute_type("like"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    fn tokens(eps: Eps, signal: f32, spread: f32) -> NoisyTokens {
        let f = |x| Tensor::from_f32(&Device::Cpu, &[2], vec![x; 2]).unwrap();
        let tokens = Tensor::from_u32(&Device::Cpu, &[2, 3], vec![0, 1, 2, 3, 4, 0]).unwrap();
        NoisyTokens { tokens, signal: f(signal), spread: f(spread), eps, vocab: 5 }
    }

    fn drawn(ids: Vec<u32>) -> Eps {
        let examples = Tensor::from_u32(&Device::Cpu, &[2], ids).unwrap();
        Eps::Drawn { noise: Noise::new(&Device::Cpu, 1, 0, 0).unwrap(), examples }
    }

    /// Without noise the layer is a look-up of the weight's columns.
    #[test]
    fn without_noise_it_is_an_embedding() {
        let tape = Tape::inference();
        let w = crate::cases::random(0, &[4, 5], 1.0);
        let (wv, b) = (tape.constant(w.clone()), tape.constant(crate::cases::random(1, &[4], 1.0)));
        let from = tokens(drawn(vec![0, 1]), 0.5, 0.0);
        let y = noisy_input(&tape, &from, &wv, &b, DType::F32).unwrap().value().to_vec().unwrap();
        let (w, b) = (w.to_vec().unwrap(), b.value().to_vec().unwrap());
        for (i, &t) in from.tokens.u32s().iter().enumerate() {
            for j in 0..4 {
                assert!((y[i * 4 + j] - (0.5 * w[j * 5 + t as usize] + b[j])).abs() < 1e-6);
            }
        }
    }

    /// Each token has its own factors, and the noise that it would have with shared ones.
    #[test]
    fn a_level_for_each_token() {
        let f = |v: Vec<f32>| Tensor::from_f32(&Device::Cpu, &[2, 3], v).unwrap();
        let (signal, spread) = (vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6], vec![1.0, 0.0, 2.0, 0.5, 3.0, 0.25]);
        let shared = |signal, spread| tokens(drawn(vec![3, 9]), signal, spread);
        let own = NoisyTokens { signal: f(signal.clone()), spread: f(spread.clone()), ..shared(0.0, 0.0) };
        let got = own.vectors(DType::F32).unwrap().to_vec().unwrap();
        for i in 0..6 {
            let want = shared(signal[i], spread[i]).vectors(DType::F32).unwrap().to_vec().unwrap();
            assert_eq!(got[i * 5..][..5], want[i * 5..][..5], "token {i}");
        }
        let wrong = NoisyTokens { signal: f(signal), ..shared(0.0, 1.0) };
        assert!(wrong.vectors(DType::F32).unwrap_err().to_string().contains("[2, 3]"));
    }

    /// Mean and variance of y_t over many draws: signal at the token, spread² everywhere, within five standard errors.
    #[test]
    fn drawn_noise_has_the_forward_process_moments() {
        let (trials, signal, spread) = (20_000, 0.6_f64, 0.8_f64);
        let (mut sum, mut square) = (vec![0.0_f64; 30], vec![0.0_f64; 30]);
        for i in 0..trials {
            let y = tokens(drawn(vec![2 * i, 2 * i + 1]), signal as f32, spread as f32).vectors(DType::F32).unwrap();
            for (k, v) in y.to_vec().unwrap().into_iter().enumerate() {
                sum[k] += v as f64;
                square[k] += (v as f64).powi(2);
            }
        }
        let n = trials as f64;
        for (row, &t) in [0, 1, 2, 3, 4, 0].iter().enumerate() {
            for c in 0..5 {
                let mean = sum[row * 5 + c] / n;
                let var = square[row * 5 + c] / n - mean * mean;
                let want = if c == t { signal } else { 0.0 };
                assert!((mean - want).abs() < 5.0 * spread / n.sqrt(), "{row} {c}: {mean}");
                assert!((var - spread * spread).abs() < 5.0 * spread * spread * (2.0 / n).sqrt(), "{row} {c}: {var}");
            }
        }
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_named() {
        let mut from = tokens(drawn(vec![0, 1]), 1.0, 1.0);
        from.vocab = 4;
        let e = from.vectors(DType::F32).unwrap_err().to_string();
        assert!(e.contains("token 4 at position 4"), "{e}");
    }
}
