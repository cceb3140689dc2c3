//! A noise schedule of one's own: any falling curve. Here one that spends half of the time where digits are decided, compared with
//! the cosine by where the noisy vector still shows its class, and used to train the loss of a network for some steps.
//!
//!     cargo run --release -p tweedie --example own_schedule

use tweedie::engine::optim::{AdamConfig, AdamW};
use tweedie::engine::{DType, Noise, Tape};
use tweedie::loss::{NoiseOf, Rows, TddLoss};
use tweedie::model::{Model, Pass, Sizes};
use tweedie::{Config, Device, Process, Result, Schedule, ScheduleKind};

const CLASSES: usize = 10;

fn main() -> Result<()> {
    let slow_end = Schedule::from_alpha_bar(|u| (1.0 - u).powi(3), 1000)?;
    let process = Process::new(slow_end);
    let cosine = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, CLASSES)?);
    println!("   t  chance that y_t shows its class: own curve, cosine");
    for t in [1, 200, 400, 600, 800, 1000] {
        println!("{t:>4}  {:.3}  {:.3}", process.survival(t, CLASSES), cosine.survival(t, CLASSES));
    }

    // A network without a condition learns how often each class comes and how to read noisy vectors.
    let config = Config::preset("digits")?.with("model.denoiser.direct", "false")?.with("model.condition", "none")?;
    let sizes = Sizes { vocab: CLASSES, tokens: 1 };
    let mut model = Model::new(&config.model, sizes, &Device::Cpu, DType::F32, 0)?;
    let mut optimizer = AdamW::new(&model.params, AdamConfig::default())?;
    let noise = Noise::new(&Device::Cpu, 0, 1, 0)?;
    let mut losses = Vec::new();
    for step in 0..200_u32 {
        let tokens = (0..64).map(|i| (i * i + step) % 3).collect(); // three classes of the ten
        let rows = Rows::new(tokens, (0..64).map(|i| 1 + i * 999 / 63).collect());
        let tape = Tape::new();
        let pass = Pass::inference(&tape, &model.params, DType::F32);
        let at = noise.later(step);
        let loss = TddLoss { process: &process, config: &config.loss, noise: NoiseOf::Drawn(&at) };
        let loss = loss.of(&pass, &model, None, &rows)?;
        losses.push(loss.value().item()?);
        tape.backward(&loss, Some(&mut model.params))?;
        optimizer.step(&mut model.params, 1e-3)?;
    }
    println!("loss {:.3} at first, {:.3} after {} steps", losses[0], losses[199], losses.len());
    assert!(losses[199] < 0.7 * losses[0]);
    Ok(())
}
