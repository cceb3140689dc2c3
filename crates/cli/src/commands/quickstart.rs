//! `tweedie quickstart`: the whole story on embedded digits, in about two minutes on a CPU.

use std::path::{Path, PathBuf};
use std::time::Instant;

use tweedie::augment::{Address, Transform};
use tweedie::config::{Config, Method, SampleConfig};
use tweedie::data::{Dataset, Source};
use tweedie::metrics::Classification;
use tweedie::run_dir::{Environment, RunDir};
use tweedie::sample::{argmax, classify, softmax};
use tweedie::settings;
use tweedie::train::{Trained, Trainer, evaluate};
use tweedie_engine::{Device, Tensor};

use super::train::{note, open_data, train};
use crate::failure::{Failure, Result};
use crate::figures::{
    self, Axis, Bin, ConfusionSpec, Figure, HeatmapSpec, LinesSpec, Picture, ReliabilitySpec, Series, Tile, TilesSpec,
};
use crate::report::{self, Align, Table};
use crate::recipe;

#[derive(clap::Args)]
pub struct Args {
    /// Folder for both runs and the figures (default: runs/quickstart-N)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Change a setting of both runs, e.g. --set train.epochs=20
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
}

const STEPS: [usize; 6] = [1, 2, 5, 10, 20, 50];

/// One of the two trainings.
struct Finished {
    name: &'static str,
    /// Epochs and top-1 of the averaged weights.
    curve: (Vec<f64>, Vec<f64>),
    seconds: f64,
    trainer: Trainer,
}

pub fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let out = args.out.clone().unwrap_or_else(|| super::train::free_folder("quickstart"));
    let choice = report::open_device(&args.device)?;
    let (config, _) = recipe::resolve("digits", &args.sets, &[])?;
    let mut both = Vec::new();
    for (name, method) in [("TDD", Method::Tdd), ("MDD", Method::Mdd)] {
        let mut config = config.clone();
        config.model.method = method;
        note(&format!("\n{name}: {}", match method {
            Method::Tdd => "encoder and denoiser, one-hot labels under Gaussian noise",
            Method::Mdd => "its masked twin, the same encoder with a linear head",
        }));
        both.push(fit(name, &config, &out.join(name.to_lowercase()), &choice.device)?);
    }
    let dataset = open_data(&config)?;
    let figures = out.join("figures");
    let [tdd, mdd] = both.as_mut_slice() else {
        return Err(Failure::ours("there are not two models"));
    };
    let result = compare(tdd, mdd, &dataset, &figures)?;
    report::print(&result)?;
    let out = out.display();
    report::print(&format!(
        "\nfigures ({}): curves, steps, heatmap, samples, confusion, reliability (.svg and .png)\n\
         took {}\n\n\
         next:\n  \
         tweedie eval {out}/tdd --steps 1,5,20 --guidance 1,2 --sampler argmax,multinomial\n  \
         tweedie classify {out}/tdd IMAGE.png\n  \
         tweedie train cifar10 --data PATH      (a GPU helps)\n  \
         tweedie config show digits             every setting, with its value\n",
        figures.display(),
        report::duration(started.elapsed().as_secs_f64())
    ))
}

fn fit(name: &'static str, config: &Config, path: &Path, device: &Device) -> Result<Finished> {
    let started = Instant::now();
    let dir = RunDir::create(path)?;
    let mut trainer = Trainer::new(config, open_data(config)?, device)?;
    dir.write_config(&settings::to_toml(&trainer.config)?)?;
    dir.write_env(&Environment::now(&device.to_string(), tweedie_engine::cpu::threads()))?;
    train(&mut trainer, &dir, false)?;
    if tweedie::interrupt::requested() {
        return Err(Failure::interrupted());
    }
    let mut curve = (Vec::new(), Vec::new());
    for m in dir.read_metrics()? {
        if let (Some("eval"), Some(epoch), Some(top1)) = (m["event"].as_str(), m["epoch"].as_f64(), m["ema_top1"].as_f64()) {
            curve.0.push(epoch);
            curve.1.push(100.0 * top1);
        }
    }
    Ok(Finished { name, curve, seconds: started.elapsed().as_secs_f64(), trainer })
}

/// Evaluate both on the test split, draw everything, and say it in a table.
fn compare(tdd: &mut Finished, mdd: &mut Finished, data: &Dataset, figures: &Path) -> Result<String> {
    let test = data.val()?;
    let score = |f: &mut Finished, steps: usize| {
        f.trainer.averaged(|t, c| evaluate(t, test, c, &SampleConfig { steps, ..c.sample.clone() }, 0, |_| {}))
    };
    let sweep = STEPS.iter().map(|&s| score(tdd, s)).collect::<tweedie::Result<Vec<Classification>>>()?;
    let twin = score(mdd, 1)?;
    let chosen = tdd.trainer.config.sample.steps;
    let full = score(tdd, chosen)?;
    let top1 = |m: &Classification| 100.0 * m.report().top1;

    let curve = |f: &Finished| Series::new(f.name, f.curve.0.clone(), f.curve.1.clone());
    let draw = Figure::lines(&LinesSpec {
        title: "TDD and its masked twin on embedded digits".into(),
        x: Axis::linear("epoch"),
        y: Axis::linear("top-1 on the test split (%)"),
        series: vec![curve(tdd), curve(mdd)],
        ..LinesSpec::default()
    })?;
    figures::save(&draw, figures, "curves")?;
    let x: Vec<f64> = STEPS.iter().map(|s| *s as f64).collect();
    let draw = Figure::lines(&LinesSpec {
        title: "Accuracy over sampling steps".into(),
        x: Axis::log("sampling steps"),
        y: Axis::linear("top-1 on the test split (%)"),
        series: vec![
            Series::new("TDD", x.clone(), sweep.iter().map(&top1).collect()),
            Series::new("MDD (one pass)", x, vec![top1(&twin); STEPS.len()]),
        ],
        ..LinesSpec::default()
    })?;
    figures::save(&draw, figures, "steps")?;
    let classes = data.class_names.clone();
    let draw = Figure::confusion(&ConfusionSpec {
        title: format!("TDD, {chosen} steps"),
        classes: classes.clone(),
        counts: full.confusion().iter().map(|c| *c as u64).collect(),
        ..ConfusionSpec::default()
    })?;
    figures::save(&draw, figures, "confusion")?;
    let n = full.bins().len() as f64;
    let bins = full.bins().iter().enumerate().map(|(i, b)| {
        let of = |x: f64| if b.count == 0 { f64::NAN } else { x / b.count as f64 };
        Bin {
            low: i as f64 / n,
            high: (i + 1) as f64 / n,
            confidence: of(b.confidence),
            accuracy: of(b.correct as f64),
            count: b.count as u64,
        }
    });
    let draw = Figure::reliability(&ReliabilitySpec {
        title: format!("Calibration of TDD, {chosen} steps"),
        bins: bins.collect(),
        ..ReliabilitySpec::default()
    })?;
    figures::save(&draw, figures, "reliability")?;
    tdd.trainer.averaged(|t, c| Ok(looks(t, c, test, &classes)))?.and_then(|(heat, tiles)| {
        figures::save(&heat, figures, "heatmap")?;
        Ok(figures::save(&tiles, figures, "samples")?)
    })?;

    use Align::{Left, Right};
    let mut table = Table::new(&[("model", Left), ("sampling", Left), ("top-1 %", Right), ("nll", Right), ("trained in", Right)]);
    let mut row = |name: &str, sampling: String, m: &Classification, s: f64| {
        let r = m.report();
        table.row(vec![
            name.into(),
            sampling,
            format!("{:.2}", 100.0 * r.top1),
            format!("{:.3}", r.nll),
            report::duration(s),
        ]);
    };
    row("TDD", format!("{chosen} steps, argmax"), &full, tdd.seconds);
    row("TDD", "1 step".into(), &sweep[0], tdd.seconds);
    row("MDD", "one pass".into(), &twin, mdd.seconds);
    Ok(format!("\n{} test images, averaged weights:\n{}", test.len(), table.render()))
}

type Looks = (figures::Drawing, figures::Drawing);

/// The first test images with predictions, and the output distribution step by step of the least certain of them.
fn looks(t: &Trained, c: &Config, test: &Source, classes: &[String]) -> Result<Looks> {
    const SHOWN: usize = 24;
    let e = &c.model.encoder;
    let transform = Transform::eval(&c.augment, e.image, e.channels)?;
    let (mut values, mut items) = (Vec::new(), Vec::new());
    for i in 0..SHOWN.min(test.len()) {
        let item = test.get(i)?;
        let mut v = vec![0.0; transform.values()];
        transform.apply(item.image.clone(), Address { seed: 0, epoch: 0, example: i as u32 }, &mut v);
        values.extend(v);
        items.push(item);
    }
    let b = items.len();
    let images = Tensor::from_f32(&t.model.device(), &[b, e.channels, e.image, e.image], values)?;
    let ids: Vec<u32> = (0..b as u32).collect();
    let vocab = classes.len();
    let mut steps: Vec<(usize, Vec<f32>)> = Vec::new();
    let logits = classify(&t.model, &images, &ids, &t.schedule, t.lambda, &c.sample, |p| steps.push((p.t, p.logits.clone())))?;
    let tiles = items.iter().zip(logits.chunks_exact(vocab)).map(|(item, l)| {
        let p = softmax(l);
        let best = argmax(&p);
        Tile {
            picture: Picture {
                width: item.image.width,
                height: item.image.height,
                channels: item.image.channels,
                pixels: item.image.data.clone(),
            },
            caption: format!("{} ({:.0} %)", classes[best], 100.0 * p[best]),
            right: Some(best == item.label as usize),
        }
    });
    let tiles = Figure::tiles(&TilesSpec {
        title: "Test images and what TDD says".into(),
        columns: 8,
        tiles: tiles.collect(),
        ..TilesSpec::default()
    })?;
    // The image whose first guess was least certain has the most to tell.
    let first = steps.first().map(|s| s.1.as_slice()).unwrap_or_default();
    let certainty = |i: usize| softmax(&first[i * vocab..][..vocab]).into_iter().fold(0.0, f64::max);
    let pick = (0..b).min_by(|a, b| certainty(*a).total_cmp(&certainty(*b))).unwrap_or(0);
    let heat = Figure::heatmap(&HeatmapSpec {
        title: format!("Output distribution per sampling step (a {})", classes[items[pick].label as usize]),
        y_label: "timestep".into(),
        rows: steps.iter().map(|s| s.0.to_string()).collect(),
        x_label: "class".into(),
        columns: classes.to_vec(),
        values: steps.iter().flat_map(|s| softmax(&s.1[pick * vocab..][..vocab])).collect(),
        colour: Axis::linear("probability").range(0.0, 1.0),
        ..HeatmapSpec::default()
    })?;
    Ok((heat, tiles))
}
