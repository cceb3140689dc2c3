//! Whole samplers on a GPU: as captured graphs and kernel by kernel, to the bit, and against the CPU.

use tweedie::config::{Method, ModelConfig, NoiseKind, SampleConfig, SamplerKind, Unmasking};
use tweedie::model::{ConditionAttention, DenoiserKind, Model, Positions, Sizes};
use tweedie::sample::{ClassSampler, Conditioned, Denoise, Ending, GraphUse, Projection, Request, TokenSampler};
use tweedie::{Process, Schedule, ScheduleKind, Trained};
use tweedie_engine::{DType, Device, Noise, Tensor, cases};

use super::findings::{Check, Findings, Result as Found};
use super::gpu::{BITS, error, rms, same};
use crate::failure::Result;
use crate::report::Progress;

/// The name of these checks.
pub const SAMPLING: &str = "sampling";

/// Of a few steps in f32: each adds the rounding of a whole network to what the one before it left. A sampler that takes the
/// prediction itself is smooth; one that takes a token would jump where two are equally likely.
const STEPS: Check = Check { name: "f32", bound: 1e-3 };

/// Features guided before the head against guided logits: roundings of a product, and in bf16 those of features and logits
/// (0.1 % each, three times that by the weights 3 and −2).
const GUIDED: [(DType, Check); 2] =
    [(DType::F32, Check { name: "f32", bound: 1e-5 }), (DType::Bf16, Check { name: "bf16", bound: 1e-2 })];

/// Noise beside bf16: TF32 keeps eleven bits of both factors, rounded or cut.
const NOISE: Check = Check { name: "bf16", bound: 2e-3 };

const VOCAB: usize = 26;
/// Odd, and so large beside the width that features are guided.
const LARGE: usize = 4 * 64 + 3;
/// With both halves of a guided pair more rows than a product of few rows takes.
const BATCH: usize = 5;
const LAMBDA: f64 = 1.0;

/// What is sampled: `round` picks ids and images, everything else stays.
type SampleFn<'a> = Box<dyn Fn(u32) -> Result<Vec<f32>> + 'a>;

struct Subject {
    label: &'static str,
    model: ModelConfig,
    vocab: usize,
    tokens: usize,
    sample: SampleConfig,
}

fn subjects() -> Result<Vec<Subject>> {
    let (digits, shapes) = (ModelConfig::preset("digits")?, ModelConfig::preset("shapes")?);
    let sample = SampleConfig { steps: 4, guidance: 2.0, seed: 5, ..SampleConfig::default() };
    let kind = |kind| {
        let mut m = digits.clone();
        m.denoiser.kind = kind;
        m
    };
    let attention = |a| {
        let mut m = shapes.clone();
        m.denoiser.condition_attention = a;
        m
    };
    let rotary = |mut m: ModelConfig| {
        m.denoiser.positions = Positions::Rotary;
        m
    };
    let evidence = |mut m: ModelConfig| {
        m.denoiser.evidence = true;
        m
    };
    let twin = |m: &ModelConfig| ModelConfig { method: Method::Mdd, ..m.clone() };
    let by = |sampler| SampleConfig { sampler, ..sample.clone() };
    let drawn = SampleConfig { votes: 2, noise: NoiseKind::Exact, ..by(SamplerKind::Multinomial) };
    let random = SampleConfig { unmask: Unmasking::Random, ..by(SamplerKind::Ancestral) };
    let committed = |s| SampleConfig { unmask: Unmasking::Confident, uncommitted: 0.5, ..by(s) };
    let one = |label, model, sample| Subject { label, model, vocab: VOCAB, tokens: 1, sample };
    let many = |label, model, sample| Subject { label, model, vocab: VOCAB, tokens: 16, sample };
    let wide = |label, model, sample| Subject { label, model, vocab: LARGE, tokens: 16, sample };
    Ok(vec![
        one("class argmax dense", digits.clone(), sample.clone()),
        one("class argmax, running mean", digits.clone(), SampleConfig { running_mean: true, ..sample.clone() }),
        one("class multinomial exact, 2 votes", digits.clone(), drawn),
        one("class ddim", digits.clone(), by(SamplerKind::Ddim)),
        one("class softmax dit", kind(DenoiserKind::Dit), by(SamplerKind::Softmax)),
        one("class softmax mlp", kind(DenoiserKind::Mlp), by(SamplerKind::Softmax)),
        one("class argmax, exact evidence", evidence(digits.clone()), sample.clone()),
        one("class ddim, exact evidence", evidence(digits.clone()), by(SamplerKind::Ddim)),
        one("class twin", twin(&digits), sample.clone()),
        many("caption argmax full", attention(ConditionAttention::Full), sample.clone()),
        many("caption multinomial prefix", attention(ConditionAttention::Prefix), by(SamplerKind::Multinomial)),
        many("caption ddim prefix", attention(ConditionAttention::Prefix), by(SamplerKind::Ddim)),
        many("caption committed", attention(ConditionAttention::Prefix), committed(SamplerKind::Argmax)),
        many(
            "caption committed multinomial",
            attention(ConditionAttention::Prefix),
            committed(SamplerKind::Multinomial),
        ),
        many(
            "caption committed, exact evidence",
            evidence(attention(ConditionAttention::Prefix)),
            committed(SamplerKind::Argmax),
        ),
        many(
            "caption corrected",
            attention(ConditionAttention::Prefix),
            SampleConfig { correction: 0.4, ..committed(SamplerKind::Argmax) },
        ),
        many(
            "caption twin corrected",
            twin(&attention(ConditionAttention::Full)),
            SampleConfig { correction: 0.4, ..random.clone() },
        ),
        many("caption twin", twin(&attention(ConditionAttention::Full)), random.clone()),
        many(
            "caption staggered",
            evidence(attention(ConditionAttention::Prefix)),
            SampleConfig { stagger: 3, ..by(SamplerKind::Ddim) },
        ),
        many("caption rotary full", rotary(attention(ConditionAttention::Full)), sample.clone()),
        many("caption rotary prefix", rotary(attention(ConditionAttention::Prefix)), by(SamplerKind::Ddim)),
        wide("caption argmax, many words", shapes.clone(), sample.clone()),
        wide("caption ddim, many words, exact evidence", evidence(shapes.clone()), by(SamplerKind::Ddim)),
        wide("caption ddim, many words", shapes.clone(), by(SamplerKind::Ddim)),
        wide("caption twin, many words", twin(&shapes), random),
    ])
}

impl Subject {
    fn model(&self, device: &Device, dtype: DType) -> Result<Trained> {
        let model = Model::new(&self.model, Sizes { vocab: self.vocab, tokens: self.tokens }, device, dtype, 3)?;
        let model = model.with_per_token_time(
            self.model.method == Method::Tdd && (self.sample.commits() || self.sample.stagger > 1),
        );
        let schedule = Schedule::new(ScheduleKind::Cosine, 1000, self.vocab)?;
        Ok(Trained::bare(model, Process::new(schedule).with_lambda(LAMBDA)?))
    }

    fn images(&self, device: &Device, batch: usize, round: u32) -> Result<Tensor> {
        let e = &self.model.encoder;
        Ok(cases::random(round, &[batch, e.channels, e.image, e.image], 1.0).to_device(device)?)
    }

    /// Call `f` with what samples `model`, with or without graphs, and return what it says of them.
    fn with<R>(&self, model: &Trained, graphs: bool, f: impl FnOnce(&SampleFn) -> Result<R>) -> Result<(R, GraphUse)> {
        let ids = |round: u32| (0..BATCH as u32).map(|i| 10 * round + i).collect::<Vec<_>>();
        let device = model.model.device();
        if self.tokens == 1 {
            let c = ClassSampler::new(model, &self.sample)?.with_graphs(graphs);
            let run: SampleFn = Box::new(|round| Ok(c.logits(&self.images(&device, BATCH, round)?, &ids(round))?));
            let out = f(&run)?;
            drop(run);
            return Ok((out, c.graph_use()));
        }
        let g = TokenSampler::new(model, &self.sample)?.with_graphs(graphs);
        let run: SampleFn = Box::new(|round| {
            let (images, ids) = (self.images(&device, BATCH, round)?, ids(round));
            // Tokens given and an end, both other in every round.
            let fixed: Vec<Option<u32>> = (0..BATCH * self.tokens)
                .map(|i| (i % 5 == round as usize % 5).then_some((i as u32 + round) % 20))
                .collect();
            let ending = Ending { eos: 24, pad: 25, unk: None, length: None, min_length: 3 + round as usize };
            let request = Request { fixed: Some(&fixed), ending: Some(ending), ..Request::new(Some(&images), &ids) };
            let made = g.generate(&request)?;
            Ok(made.tokens.iter().map(|t| *t as f32).chain(made.log_probs).collect())
        });
        let out = f(&run)?;
        drop(run);
        Ok((out, g.graph_use()))
    }

    /// Samplers without a choice between tokens on the way.
    fn is_smooth(&self) -> bool {
        matches!(self.sample.sampler, SamplerKind::Ddim | SamplerKind::Softmax)
            || (self.tokens == 1 && self.model.method == Method::Mdd)
    }

    /// Steps whose times the host looks up are not captured.
    fn is_captured(&self) -> bool {
        self.sample.stagger <= 1
    }

    fn check(&self, device: &Device, dtype: DType, findings: &mut Findings) -> Result<()> {
        // Direct, captured and replayed, replayed on other inputs, replayed on those before.
        const ROUNDS: [u32; 4] = [0, 1, 2, 1];
        let all = |run: &SampleFn| ROUNDS.iter().map(|r| run(*r)).collect::<Result<Vec<_>>>();
        let model = self.model(device, dtype)?;
        let (direct, _) = self.with(&model, false, |run| all(run))?;
        let (graphed, used) = self.with(&model, true, |run| all(run))?;
        let label = format!("{} {dtype}", self.label);
        if let Some(why) = used.failure {
            findings.broken(SAMPLING, &label, &format!("cannot be captured: {why}"));
        }
        if self.is_captured() && used.replays != ROUNDS.len() - 1 {
            findings.broken(SAMPLING, &label, &format!("{} replays of {}", used.replays, ROUNDS.len() - 1));
        }
        for (i, (a, b)) in direct.iter().zip(&graphed).enumerate() {
            findings.note(SAMPLING, &label, &format!("run {i}"), BITS, Found::SameBits(same(a, b)));
        }
        // Other inputs must give other results: otherwise nothing was compared.
        if same(&graphed[1], &graphed[2]) || !same(&graphed[1], &graphed[3]) {
            findings.broken(SAMPLING, &label, "replays do not follow their inputs");
        }
        if dtype == DType::F32 && self.is_smooth() {
            let (cpu, _) = self.with(&self.model(&Device::Cpu, dtype)?, false, |run| all(run))?;
            for (i, (want, got)) in cpu.iter().zip(&graphed).enumerate() {
                let found = Found::Error(error(want, got, rms(want)));
                findings.note(SAMPLING, &label, &format!("run {i}"), STEPS, found);
            }
        }
        Ok(())
    }
}

/// One network guided both ways.
fn check_guided(device: &Device, (dtype, check): (DType, Check), findings: &mut Findings) -> Result<()> {
    const WEIGHT: f32 = 3.0;
    let s = Subject {
        label: "guided features",
        model: ModelConfig::preset("shapes")?,
        vocab: LARGE,
        tokens: 16,
        sample: SampleConfig::default(),
    };
    let model = s.model(device, dtype)?;
    let network = Conditioned::new(&model.model, Some(&s.images(device, BATCH, 0)?), 1, true)?;
    let u = cases::random(7, &[BATCH, s.tokens, s.model.denoiser.width], 1.0).to_device(device)?;
    // Rows may be longer than the vocabulary.
    let values = |l: Tensor| -> Result<Vec<f32>> {
        Ok(l.to_vec()?.chunks(l.width()).flat_map(|row| &row[..LARGE]).copied().collect())
    };
    let pairs = values(Denoise::logits_of_pairs(&network, &u, 300.into())?)?;
    let guide = |pair: &[f32]| -> Vec<f32> {
        let (c, u) = pair.split_at(s.tokens * LARGE);
        c.iter().zip(u).map(|(c, u)| u + WEIGHT * (c - u)).collect()
    };
    let want: Vec<f32> = pairs.chunks_exact(2 * s.tokens * LARGE).flat_map(guide).collect();
    match Denoise::guided(&network, &u, 300.into(), WEIGHT)? {
        Some(got) => {
            let found = Found::Error(error(&want, &values(got)?, rms(&want)));
            findings.note(SAMPLING, &format!("{} {dtype}", s.label), "logits", check, found);
        }
        None => findings.broken(SAMPLING, s.label, "features are not guided"),
    }
    Ok(())
}

/// Exact noise to three digits against all of them, of few rows and of many.
fn check_noise(device: &Device, findings: &mut Findings) -> Result<()> {
    let (d, tokens) = (72, 16);
    let weight = cases::random(1, &[d, 3 * d], 0.3).to_device(device)?;
    let noise = Noise::new(device, 5, 1, 0)?;
    for batch in [1, 40] {
        let ids = Tensor::from_u32(device, &[batch], (0..batch as u32).collect())?;
        let draw = |dtype| -> Result<Vec<f32>> {
            let all = Projection::new(&weight, NoiseKind::Exact)?.beside(dtype);
            Ok(all.draw(&noise, &ids, if batch == 1 { 1 } else { tokens })?.to_vec()?)
        };
        let want = draw(DType::F32)?;
        let found = Found::Error(error(&want, &draw(DType::Bf16)?, rms(&want)));
        findings.note(SAMPLING, &format!("exact noise of {batch}"), "noise", NOISE, found);
    }
    Ok(())
}

pub fn check(device: &Device, progress: &Progress, findings: &mut Findings) -> Result<()> {
    if let Err(e) = check_noise(device, findings) {
        findings.broken(SAMPLING, "exact noise", &e.to_string());
    }
    for by in GUIDED {
        if let Err(e) = check_guided(device, by, findings) {
            findings.broken(SAMPLING, "guided features", &e.to_string());
        }
    }
    for s in subjects()? {
        for dtype in [DType::F32, DType::Bf16] {
            progress.say(SAMPLING, s.label);
            if let Err(e) = s.check(device, dtype, findings) {
                findings.broken(SAMPLING, s.label, &e.to_string());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything but the graphs, with the CPU in the place of the device: the samplers run, and their inputs matter.
    #[test]
    fn every_subject_runs_and_follows_its_inputs() {
        for s in subjects().unwrap() {
            let mut findings = Findings::default();
            s.check(&Device::Cpu, DType::F32, &mut findings).unwrap();
            let failures = findings.failures();
            assert!(failures.iter().all(|f| f.contains("0 replays of 3")), "{failures:?}");
            assert_eq!(failures.len(), s.is_captured() as usize, "{failures:?}");
        }
    }

    #[test]
    fn guided_features_and_noise_are_checked() {
        let mut findings = Findings::default();
        check_noise(&Device::Cpu, &mut findings).unwrap();
        check_guided(&Device::Cpu, GUIDED[0], &mut findings).unwrap();
        assert!(findings.failures().is_empty(), "{:?}", findings.failures());
        let strict = Check { name: "f32", bound: 0.0 };
        check_guided(&Device::Cpu, (DType::F32, strict), &mut findings).unwrap();
        assert_eq!(findings.failures().len(), 1);
    }
}
