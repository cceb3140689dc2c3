//! `tweedie export`: a trained model as a folder that other programs read, or as one file that this one reads.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tweedie::config::{Config, Precision};
use tweedie::data::Task;
use tweedie::files::write_atomic;
use tweedie::model::Model;
use tweedie::model_file;
use tweedie::run::{self, Loaded, Weights};
use tweedie::run_dir::RunDir;
use tweedie::tensors::{self, NamedTensor};
use tweedie_engine::Device;

use crate::failure::{Failure, Result};
use crate::report::{self, note};

const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const README: &str = "README.md";
const TOKENIZER: &str = "tokenizer.json";

#[derive(clap::Args)]
pub struct Args {
    /// Run folder, one checkpoint in it, or a model that comes with the program: embedded:NAME
    run: PathBuf,
    /// For which program
    #[arg(long, value_enum, value_name = "PROGRAM")]
    to: Target,
    /// Folder to write, new or empty (default: RUN/export-PROGRAM); or the file (default: RUN/model.tdd)
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// The weights as trained, not their average
    #[arg(long)]
    raw: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Target {
    /// Weights by PyTorch's names, for reference/load_run.py and from there ONNX
    Pytorch,
    /// One small file, weights in bf16, which every command that uses a model takes instead of a run
    File,
}

/// The settings of the run, and beside them what else there is to know.
#[derive(Serialize)]
struct Exported<'a> {
    #[serde(flatten)]
    settings: &'a Config,
    export: About<'a>,
}

#[derive(Serialize)]
struct About<'a> {
    /// Version of the program.
    tweedie: &'static str,
    run: String,
    step: u64,
    weights: &'static str,
    /// Names of the classes, in the order of the logits; of sequences the tokenizer has them.
    classes: &'a [String],
    /// ᾱ_0 to ᾱ_T.
    alpha_bar: Vec<f64>,
    /// What pixels in [0, 1] are shifted and scaled by, channel by channel.
    mean: Vec<f32>,
    std: Vec<f32>,
}

#[derive(Serialize)]
struct Report {
    folder: String,
    files: Vec<&'static str>,
    parameters: usize,
    step: u64,
}

#[derive(Serialize)]
struct FileReport {
    file: String,
    bytes: usize,
    parameters: usize,
    step: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let weights = if args.raw { Weights::Raw } else { Weights::Ema };
    let loaded = run::load(&args.run, weights, &Device::Cpu, Precision::F32)?;
    loaded.notes.iter().for_each(|n| note(n));
    match args.to {
        Target::Pytorch => to_folder(args, &loaded),
        Target::File => to_file(args, &loaded),
    }
}

/// What `--out` says, else `name` in the folder of the run.
fn out(args: &Args, name: &str) -> Result<PathBuf> {
    match &args.out {
        Some(out) => Ok(out.clone()),
        None => Ok(RunDir::around(&args.run)?.0.path().join(name)),
    }
}

fn to_file(args: &Args, loaded: &Loaded) -> Result<()> {
    let out = out(args, "model.tdd")?;
    if out.extension().is_none_or(|e| e != model_file::EXTENSION) {
        let why = format!("--out {}: the name must end in .{}", out.display(), model_file::EXTENSION);
        return Err(Failure::input(why));
    }
    let bytes = model_file::save(&out, loaded)?;
    let (file, parameters) = (out.display().to_string(), loaded.trained.model.params.count());
    if args.json {
        return report::print_json(&FileReport { file, bytes, parameters, step: loaded.step });
    }
    note(&format!("{parameters} parameters of step {} in {bytes} bytes", loaded.step));
    report::print(&format!("{file}\n"))
}

/// Parts of the denoiser that the reference in PyTorch has not: it could not load their weights.
fn check_reference(model: &Model) -> Result<()> {
    let parts = [
        (model.reads_evidence(), "evidence"),
        (model.has_denoiser() && model.config().denoiser.self_condition, "self_condition"),
    ];
    match parts.into_iter().find(|p| p.0) {
        Some((_, name)) => {
            let what =
                format!("the network in PyTorch has no model.denoiser.{name}, which this model was trained with");
            Err(Failure::input(what).hint("tweedie export RUN --to file"))
        }
        None => Ok(()),
    }
}

fn to_folder(args: &Args, loaded: &Loaded) -> Result<()> {
    check_reference(&loaded.trained.model)?;
    let out = out(args, "export-pytorch")?;
    check_free(&out)?;
    std::fs::create_dir_all(&out).map_err(|e| tweedie::Error::file(&out, e))?;
    let tensors = weights_of(loaded)?;
    let mut files = vec![WEIGHTS, CONFIG, README];
    tensors::write(&out.join(WEIGHTS), &tensors)?;
    let about = about(args, loaded)?;
    let exported = Exported { settings: &loaded.config, export: about };
    write_atomic(&out.join(CONFIG), serde_json::to_string_pretty(&exported)?.as_bytes())?;
    write_atomic(&out.join(README), readme(&out, loaded).as_bytes())?;
    if let Some(tokenizer) = &loaded.trained.tokenizer {
        write_atomic(&out.join(TOKENIZER), tokenizer.to_json().as_bytes())?;
        files.push(TOKENIZER);
    }
    let folder = out.display().to_string();
    let parameters = tensors.iter().map(|t| t.data.len()).sum();
    if args.json {
        return report::print_json(&Report { folder, files, parameters, step: loaded.step });
    }
    note(&format!("{parameters} parameters of step {} in {}", loaded.step, files.join(", ")));
    report::print(&format!("{folder}\n"))
}

/// Nothing of somebody else's is written over; an earlier export may be.
fn check_free(out: &Path) -> Result<()> {
    let empty = std::fs::read_dir(out).map_or(true, |mut inside| inside.next().is_none());
    if empty || out.join(CONFIG).is_file() && out.join(WEIGHTS).is_file() {
        return Ok(());
    }
    Err(Failure::input(format!("{} exists and is not an earlier export", out.display())).hint("--out NEW_FOLDER"))
}

fn weights_of(loaded: &Loaded) -> Result<Vec<NamedTensor<'static>>> {
    let params = &loaded.trained.model.params;
    let all = params.iter().map(|(name, shape, id)| Ok(NamedTensor::new(name, shape, params.value(id).to_vec()?)));
    all.collect()
}

fn about<'a>(args: &Args, loaded: &'a Loaded) -> Result<About<'a>> {
    let schedule = loaded.trained.process.schedule();
    let (mean, std) = match loaded.config.model.is_conditional() {
        true => loaded.config.augment.statistics(loaded.config.model.encoder.channels)?,
        false => (Vec::new(), Vec::new()),
    };
    Ok(About {
        tweedie: env!("CARGO_PKG_VERSION"),
        run: args.run.display().to_string(),
        step: loaded.step,
        weights: if args.raw { "raw" } else { "ema" },
        classes: &loaded.trained.class_names,
        alpha_bar: (0..=loaded.trained.process.steps()).map(|t| schedule.alpha_bar(t)).collect(),
        mean,
        std,
    })
}

fn readme(out: &Path, loaded: &Loaded) -> String {
    let folder = out.display();
    let c = &loaded.config;
    let e = &c.model.encoder;
    let images = match c.model.is_conditional() {
        true => format!(
            "images = torch.zeros(1, {0}, {1}, {1})  # pixels in [0, 1], less mean, over std of config.json\n",
            e.channels, e.image
        ),
        false => String::new(),
    };
    let (given, n) = (if c.model.is_conditional() { "images" } else { "None" }, c.sizes().tokens);
    let call = match (loaded.trained.model.is_tdd(), c.data.task) {
        (false, Task::Class) => format!("logits = model({given})\n"),
        (true, Task::Class | Task::Caption) => format!(
            "ids = model.sample({given}, {n}, {}, torch.tensor(config[\"export\"][\"alpha_bar\"]), S={}, cfg={:?})\n",
            c.model.classes, c.sample.steps, c.sample.guidance
        ),
        _ => format!(
            "cond = model.condition({given})  # for model.denoiser(noisy, t, cond): logits [B, {n}, {}]\n",
            c.model.classes
        ),
    };
    let mut text = format!(
        "# {folder}\n\nWeights (`{WEIGHTS}`, by PyTorch's names) and settings (`{CONFIG}`) of a model that tweedie {} trained, for \
         `reference/` of its repository:\n\n```python\nimport sys, torch\nsys.path.insert(0, \"reference\")  # of the repository\n\
         from load_run import load\nmodel, config, _ = load({folder:?})\n{images}{call}```\n",
        env!("CARGO_PKG_VERSION"),
        folder = folder.to_string()
    );
    let _ = write!(text, "\nFrom here to ONNX: `python reference/export_onnx.py {folder}`.\n");
    text
}
