//! `tweedie quickstart`: the whole story on embedded data, in minutes on a CPU. Here that of digits; the one of captions is
//! `captions.rs`.

mod captions;

use std::path::{Path, PathBuf};
use std::time::Instant;

use tweedie::config::{Config, Method, SampleConfig};
use tweedie::data::Dataset;
use tweedie::metrics::Classification;
use tweedie::train::{TrainingSet, open_classes};
use tweedie::{Session, evaluate, interrupt};
use tweedie_engine::Device;
use tweedie_figures::{
    Axis, BarSeries, BarsSpec, Bin, ConfusionSpec, Drawing, Figure, LinesSpec, ReliabilitySpec, Series,
};

use super::train::{attended, free_folder, opening, train};
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Progress, Table, note, terminal, with_bar};
use crate::shared::preview;
use crate::shared::recipe;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Learnt {
    /// Classes of digits
    Class,
    /// Captions of drawn scenes
    Caption,
}

#[derive(clap::Args)]
pub struct Args {
    /// What is learnt
    #[arg(long, value_enum, default_value_t = Learnt::Class, value_name = "TASK")]
    task: Learnt,
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
pub struct Finished {
    pub name: &'static str,
    /// Epochs and what was right on the validation split, in percent: top-1 of the averaged weights, or whole captions.
    pub curve: (Vec<f64>, Vec<f64>),
    /// Steps and training loss.
    pub loss: (Vec<f64>, Vec<f64>),
    pub seconds: f64,
    pub session: Session,
}

pub fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let out = args.out.clone().unwrap_or_else(|| free_folder("quickstart"));
    let choice = report::open_device(&args.device)?;
    terminal::catch_interrupts("step")?;
    if args.task == Learnt::Caption {
        let text = captions::run(&args.sets, &out, &choice.device)?;
        return report::print_words(&format!("{text}\ntook {}\n", report::duration(started.elapsed().as_secs_f64())));
    }
    let (config, _) = recipe::resolve("digits", &args.sets, &[])?;
    let mut both = Vec::new();
    for (name, method) in [("TDD", Method::Tdd), ("MDD", Method::Mdd)] {
        let mut config = config.clone();
        config.model.method = method;
        note("");
        note(&format!(
            "{name}: {}",
            match method {
                Method::Tdd => "encoder and denoiser, one-hot labels under Gaussian noise",
                Method::Mdd => "its masked twin, the same encoder with a linear head",
            }
        ));
        both.push(fit(name, &config, &out.join(name.to_lowercase()), &choice.device)?);
    }
    let dataset = open_classes(&config)?;
    let figures = out.join("figures");
    let [tdd, mdd] = both.as_mut_slice() else {
        return Err(Failure::ours("there are not two models"));
    };
    let result = compare(tdd, mdd, &dataset, &figures)?;
    report::print(&result)?;
    let out = out.display();
    report::print_words(&format!(
        "\nfigures ({}): comparison, curves, loss, steps, heatmap, samples, confusion, reliability (.svg and .png)\n\
         took {}\n\n\
         next:\n  \
         tweedie eval {out}/tdd --steps 1,5,20 --guidance 1,2\n  \
         tweedie classify {out}/tdd IMAGE.png\n  \
         tweedie train cifar10 --data PATH    (a GPU helps)\n  \
         tweedie config show digits           every setting\n",
        figures.display(),
        report::duration(started.elapsed().as_secs_f64())
    ))
}

pub fn fit(name: &'static str, config: &Config, path: &Path, device: &Device) -> Result<Finished> {
    let started = Instant::now();
    let data = opening(&config.data.path, || TrainingSet::open(config, None))?;
    let mut session = attended(Session::create(path, config, data, device)?);
    session.notes().iter().for_each(|n| note(n));
    let t = session.trainer();
    let (epochs, examples) = (t.config.train.epochs, report::count(t.training_examples()));
    note(&format!("{} steps: {epochs} epochs of {examples} images, on {device}; {}", t.total_steps(), path.display()));
    train(&mut session)?;
    if interrupt::requested() {
        let run = path.display();
        terminal::stopped(&format!("interrupted; {name} alone goes on with:\ntweedie train --resume {run}"));
        return Err(Failure::interrupted());
    }
    let (mut curve, mut loss) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for m in session.dir().read_metrics()? {
        if let (Some("step"), Some(step), Some(l)) = (m["event"].as_str(), m["step"].as_f64(), m["loss"].as_f64()) {
            loss.0.push(step);
            loss.1.push(l);
        }
        let right = match m["event"].as_str() {
            Some("eval") => m["ema_top1"].as_f64(),
            Some("eval-text") => m["exact"].as_f64(),
            _ => None,
        };
        if let (Some(epoch), Some(right)) = (m["epoch"].as_f64(), right) {
            curve.0.push(epoch);
            curve.1.push(100.0 * right);
        }
    }
    Ok(Finished { name, curve, loss, seconds: started.elapsed().as_secs_f64(), session })
}

/// The training loss of both.
pub fn loss_figure(tdd: &Finished, mdd: &Finished, of_what: &str) -> Result<Drawing> {
    let loss = |f: &Finished| Series::new(f.name, f.loss.0.clone(), f.loss.1.clone()).averaged(30);
    Ok(Figure::lines(&LinesSpec {
        title: format!("Training loss: {of_what}"),
        x: Axis::linear("step"),
        y: Axis::linear("cross-entropy (nats)"),
        series: vec![loss(tdd), loss(mdd)],
        ..LinesSpec::default()
    })?)
}

/// What was measured on the test split.
struct Measured {
    /// TDD for each of [`STEPS`].
    sweep: Vec<Classification>,
    /// TDD with its own number of steps, which is that.
    full: Classification,
    steps: usize,
    twin: Classification,
}

/// Top-1 in percent with its standard error.
fn top1(m: &Classification) -> (f64, f64) {
    let (p, n) = (m.report().top1, m.report().examples as f64);
    (100.0 * p, 100.0 * (p * (1.0 - p) / n).sqrt())
}

/// Evaluate both on the test split, draw everything, and say it in a table.
fn compare(tdd: &mut Finished, mdd: &mut Finished, data: &Dataset, figures: &Path) -> Result<String> {
    let (test, _) = data.final_split()?;
    let score = |f: &mut Finished, steps: usize| {
        let sample = |c: &Config| SampleConfig { steps, ..c.sample.clone() };
        f.session.trainer_mut().averaged(|t, c| evaluate::classes(t, test, c, &sample(c), 0, |_| {}))
    };
    let m = with_bar("measuring on the test images", || -> tweedie::Result<Measured> {
        let sweep = STEPS.iter().map(|&s| score(tdd, s)).collect::<tweedie::Result<Vec<Classification>>>()?;
        let twin = score(mdd, 1)?;
        let steps = tdd.session.trainer().config.sample.steps;
        Ok(Measured { sweep, full: score(tdd, steps)?, steps, twin })
    })?;
    let progress = Progress::new();
    progress.tick("drawing the figures");
    let shown = tdd.session.trainer_mut().averaged(|t, c| Ok(preview::classes(t, c, test)))??;
    for (name, drawing) in [
        ("curves", curves(tdd, mdd)?),
        ("loss", loss_figure(tdd, mdd, "of the noisy labels (TDD), of the masked label (MDD)")?),
        ("steps", over_steps(&m)?),
        ("confusion", confusion(&m, &data.class_names)?),
        ("reliability", reliability(&m)?),
        ("heatmap", shown.heatmap()?),
        ("samples", shown.tiles()?),
        ("comparison", comparison(&m)?),
    ] {
        report::save_figure(&drawing, figures, name)?;
    }
    Ok(format!("\n{} test images, averaged weights:\n{}", test.len(), table(tdd, mdd, &m)))
}

fn table(tdd: &Finished, mdd: &Finished, m: &Measured) -> String {
    use Align::{Left, Right};
    let mut table =
        Table::new(&[("model", Left), ("sampling", Left), ("top-1 %", Right), ("nll", Right), ("trained in", Right)]);
    let mut row = |f: &Finished, sampling: String, m: &Classification| {
        let r = m.report();
        table.row(vec![
            f.name.into(),
            sampling,
            format!("{:.2}", 100.0 * r.top1),
            format!("{:.3}", r.nll),
            report::duration(f.seconds),
        ]);
    };
    row(tdd, format!("{} steps, argmax", m.steps), &m.full);
    row(tdd, "1 step".into(), &m.sweep[0]);
    row(mdd, "one pass".into(), &m.twin);
    table.shown()
}

fn curves(tdd: &Finished, mdd: &Finished) -> Result<Drawing> {
    let curve = |f: &Finished| Series::new(f.name, f.curve.0.clone(), f.curve.1.clone());
    Ok(Figure::lines(&LinesSpec {
        title: "TDD and its masked twin on embedded digits".into(),
        x: Axis::linear("epoch"),
        y: Axis::linear("top-1 on the validation split (%)"),
        series: vec![curve(tdd), curve(mdd)],
        ..LinesSpec::default()
    })?)
}

fn over_steps(m: &Measured) -> Result<Drawing> {
    let (values, errors): (Vec<f64>, Vec<f64>) = m.sweep.iter().map(top1).unzip();
    let x: Vec<f64> = STEPS.iter().map(|s| *s as f64).collect();
    Ok(Figure::lines(&LinesSpec {
        title: "Accuracy over sampling steps".into(),
        x: Axis::log("sampling steps"),
        y: Axis::linear("top-1 on the test split (%)"),
        series: vec![
            Series::new("TDD (± one standard error)", x.clone(), values).spread(&errors),
            Series::new("MDD (one pass)", x, vec![top1(&m.twin).0; STEPS.len()]),
        ],
        ..LinesSpec::default()
    })?)
}

fn confusion(m: &Measured, classes: &[String]) -> Result<Drawing> {
    Ok(Figure::confusion(&ConfusionSpec {
        title: format!("TDD, {} steps", m.steps),
        classes: classes.to_vec(),
        counts: m.full.confusion().iter().map(|c| *c as u64).collect(),
        ..ConfusionSpec::default()
    })?)
}

fn reliability(m: &Measured) -> Result<Drawing> {
    let n = m.full.bins().len() as f64;
    let bins = m.full.bins().iter().enumerate().map(|(i, b)| {
        let of = |x: f64| if b.count == 0 { f64::NAN } else { x / b.count as f64 };
        Bin {
            low: i as f64 / n,
            high: (i + 1) as f64 / n,
            confidence: of(b.confidence),
            accuracy: of(b.correct as f64),
            count: b.count as u64,
        }
    });
    Ok(Figure::reliability(&ReliabilitySpec {
        title: format!("Calibration of TDD, {} steps", m.steps),
        bins: bins.collect(),
        ..ReliabilitySpec::default()
    })?)
}

fn comparison(m: &Measured) -> Result<Drawing> {
    let (values, errors): (Vec<f64>, Vec<f64>) = [&m.full, &m.sweep[0], &m.twin].map(top1).into_iter().unzip();
    let lowest = values.iter().zip(&errors).map(|(v, e)| v - e).fold(100.0, f64::min);
    let floor = (lowest - 1.0).floor().max(0.0);
    Ok(Figure::bars(&BarsSpec {
        title: "TDD and its masked twin (intervals: one standard error of the test set)".into(),
        y: Axis::linear("top-1 on the test split (%)").range(floor, 100.0 + 0.08 * (100.0 - floor)),
        categories: vec![format!("TDD, {} steps", m.steps), "TDD, 1 step".into(), "MDD".into()],
        series: vec![BarSeries { name: String::new(), values, errors: Some(errors) }],
        decimals: Some(1),
        ..BarsSpec::default()
    })?)
}
