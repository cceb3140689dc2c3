//! Requests that share a model on a GPU: what each is told beside others and alone, within the rounding of products of other sizes.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tweedie::augment::{AugmentConfig, Transform};
use tweedie::config::{Method, ModelConfig, SampleConfig, SamplerKind, Unmasking};
use tweedie::live::{Event, Job, JobId, LiveModel, LiveStep};
use tweedie::model::{Model, Sizes};
use tweedie::tokenize::{Kind, Tokenizer};
use tweedie::{Process, Schedule, ScheduleKind, Trained};
use tweedie_engine::{DType, Device, cases};

use super::findings::{Check, Findings, Result as Found};
use super::gpu::{error, rms};
use crate::failure::{Failure, Result};
use crate::report::Progress;

/// The name of these checks.
pub const LIVE: &str = "live";

/// Probabilities and entropies of the first step, or of all where no token is chosen on the way: roundings of a whole network, in bf16 of
/// its activations.
const CHECKS: [(DType, Check); 2] =
    [(DType::F32, Check { name: "f32", bound: 1e-3 }), (DType::Bf16, Check { name: "bf16", bound: 5e-2 })];

/// Jobs beside each other; with guidance their rows pass several sizes of batches as they come and go.
const JOBS: usize = 6;

struct Subject {
    label: &'static str,
    model: ModelConfig,
    text: bool,
    sample: SampleConfig,
}

fn subjects() -> Result<Vec<Subject>> {
    let (digits, shapes) = (ModelConfig::preset("digits")?, ModelConfig::preset("shapes")?);
    let sample = SampleConfig { steps: 4, guidance: 2.0, ..SampleConfig::default() };
    let by = |sampler| SampleConfig { sampler, ..sample.clone() };
    let twin = ModelConfig { method: Method::Mdd, ..shapes.clone() };
    let confident = SampleConfig { unmask: Unmasking::Confident, ..sample.clone() };
    let one = |label, model, text, sample| Subject { label, model, text, sample };
    Ok(vec![
        one("class argmax", digits.clone(), false, sample.clone()),
        one(
            "class ddim, running mean",
            digits.clone(),
            false,
            SampleConfig { running_mean: true, ..by(SamplerKind::Ddim) },
        ),
        one("class softmax", digits, false, by(SamplerKind::Softmax)),
        one("caption multinomial", shapes.clone(), true, by(SamplerKind::Multinomial)),
        one("caption ddim", shapes, true, by(SamplerKind::Ddim)),
        one("caption twin", twin, true, confident),
    ])
}

impl Subject {
    fn trained(&self, device: &Device, dtype: DType) -> Result<Rc<Trained>> {
        let tokenizer = Tokenizer::train(Kind::Chars, 99, ["the quick brown fox jumps over a lazy dog"])?;
        let sizes = match self.text {
            true => Sizes { vocab: tokenizer.vocab(), tokens: 16 },
            false => Sizes { vocab: 10, tokens: 1 },
        };
        let model = Model::new(&self.model, sizes, device, dtype, 3)?;
        let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, sizes.vocab)?);
        let e = &self.model.encoder;
        let transform = Transform::eval(&AugmentConfig::none(), e.image, e.channels).map_err(tweedie::Error::from)?;
        Ok(Rc::new(Trained {
            tokenizer: self.text.then(|| Arc::new(tokenizer)),
            class_names: (0..10).map(|i| i.to_string()).collect(),
            transform: Some(transform),
            ..Trained::bare(model, process)
        }))
    }

    fn job(&self, i: usize) -> Result<Job> {
        let e = &self.model.encoder;
        let image = cases::random(i as u32, &[e.channels * e.image * e.image], 1.0).to_vec()?;
        let sample = SampleConfig { seed: i as u64, guidance: 1.5 + i as f32, ..self.sample.clone() };
        Ok(Job { image: Some(image), ..Job::new(&sample) })
    }

    /// Whether later steps may be compared too: no token is chosen on the way.
    fn is_smooth(&self) -> bool {
        matches!(self.sample.sampler, SamplerKind::Ddim | SamplerKind::Softmax)
    }

    fn check(&self, device: &Device, (dtype, check): (DType, Check), findings: &mut Findings) -> Result<()> {
        let trained = self.trained(device, dtype)?;
        let label = format!("{} {dtype}", self.label);
        let jobs = (0..JOBS).map(|i| self.job(i)).collect::<Result<Vec<_>>>()?;
        let beside = steps_of(&trained, &jobs)?;
        for (i, job) in jobs.iter().enumerate() {
            let alone = steps_of(&trained, std::slice::from_ref(job))?.remove(0);
            let count = if self.is_smooth() { alone.len() } else { 1 };
            let numbers = |steps: &[LiveStep]| -> Vec<f32> {
                let places = steps.iter().take(count).flat_map(|s| &s.places);
                places.flat_map(|p| p.top.iter().map(|t| t.1 as f32).chain([p.entropy as f32])).collect()
            };
            let (want, got) = (numbers(&alone), numbers(&beside[i]));
            findings.note(LIVE, &label, &format!("job {i}"), check, Found::Error(error(&want, &got, rms(&want))));
        }
        Ok(())
    }
}

/// The steps of each job; every one joins a step after the one before.
fn steps_of(trained: &Rc<Trained>, jobs: &[Job]) -> Result<Vec<Vec<LiveStep>>> {
    let mut live = LiveModel::new(trained.clone(), 64)?;
    let (mut ids, mut steps): (Vec<JobId>, HashMap<JobId, Vec<LiveStep>>) = Default::default();
    let mut left = jobs.iter();
    loop {
        let next = left.next();
        if let Some(job) = next {
            for made in live.admit(vec![job.clone()]) {
                ids.push(made?);
            }
        }
        for (id, event) in live.step()? {
            match event {
                Event::Step(step) => steps.entry(id).or_default().push(step),
                Event::Failed(why) => return Err(Failure::ours(why)),
                Event::Done(_) => {}
            }
        }
        if next.is_none() && live.is_idle() {
            return Ok(ids.iter().map(|id| steps.remove(id).unwrap_or_default()).collect());
        }
    }
}

pub fn check(device: &Device, progress: &Progress, findings: &mut Findings) -> Result<()> {
    for s in subjects()? {
        for by in CHECKS {
            progress.say(LIVE, s.label);
            if let Err(e) = s.check(device, by, findings) {
                findings.broken(LIVE, s.label, &e.to_string());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the CPU in the place of the device nothing differs at all.
    #[test]
    fn on_the_cpu_not_a_bit_differs() {
        for s in subjects().unwrap() {
            let mut findings = Findings::default();
            s.check(&Device::Cpu, (DType::F32, Check { name: "f32", bound: 0.0 }), &mut findings).unwrap();
            assert!(findings.failures().is_empty(), "{:?}", findings.failures());
        }
    }
}
