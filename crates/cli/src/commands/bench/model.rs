//! `tweedie bench train` and `bench sample`: whole steps of a model on made-up data.

mod floor;
mod profile;
mod scale;
mod synthetic;

pub use floor::estimate as products_of_step;
pub use scale::{ScaleArgs, scale};

use std::time::Instant;

use serde::Serialize;
use tweedie::Trained;
use tweedie::config::{Config, ModelConfig, NoiseKind, PRESETS, SampleConfig};
use tweedie::data::{Layout, Task};
use tweedie::interrupt;
use tweedie::model::{ConditionAttention, Conditioning, Gelu, count_parameters};
use tweedie::sample::{ClassSampler, GraphUse, Request, TokenSampler};
use tweedie::train::Trainer;
use tweedie_engine::{Device, Tensor};

use super::form::{Form, Format};
use super::ops::{Setup, Timer, median};
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Progress, Table};
use crate::shared::names::{ATTENTIONS, NOISES, one_of};
use crate::shared::numbers;

/// What both have in common.
#[derive(clap::Args)]
pub struct Model {
    /// Network
    #[arg(long, default_value = "tiny", value_name = "NAME", value_parser = PRESETS)]
    preset: String,
    /// Classes or words (default: as the preset is meant)
    #[arg(long, value_name = "V", value_parser = numbers::whole(2..=1 << 22))]
    vocab: Option<usize>,
    /// Tokens of a sequence (default: as the preset is meant)
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    tokens: Option<usize>,
    /// Side of the images
    #[arg(long, value_name = "PIXELS", value_parser = numbers::whole(1..=1 << 16))]
    image: Option<usize>,
    /// Condition tokens are computed once per image (prefix) or with every copy and step (full)
    #[arg(long, value_name = "KIND", value_parser = one_of::<ConditionAttention>(ATTENTIONS))]
    condition_attention: Option<ConditionAttention>,
    /// GELU by its tanh form, which GPU products can end with; otherwise the exact one
    #[arg(long)]
    tanh: bool,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Timings, of which the median is shown
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = numbers::whole(1..=1_000_000))]
    repeats: usize,
    /// On a GPU: also show the N kernels that take longest
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = numbers::whole(0..=100_000))]
    profile: usize,
    #[command(flatten)]
    form: Form,
    /// Measured for `bench growth`: the first Ctrl-C is for that one, which waits for this; the second ends both
    #[arg(long, hide = true)]
    point: bool,
}

#[derive(clap::Args)]
pub struct TrainArgs {
    #[command(flatten)]
    model: Model,
    /// Images or texts of a step
    #[arg(long, value_delimiter = ',', default_values_t = [32], value_name = "B,…", value_parser = numbers::whole(1..=1 << 20))]
    batch: Vec<usize>,
    /// Noisy copies of each
    #[arg(long, alias = "kfold", default_value_t = 4, value_name = "K", value_parser = numbers::whole(1..=1 << 16))]
    noisy_copies: usize,
    /// Compute activations again in the backward pass
    #[arg(long)]
    recompute: bool,
    /// Include the upload of the images in the step
    #[arg(long)]
    upload: bool,
    /// Do not time the products by themselves
    #[arg(long)]
    no_floor: bool,
}

#[derive(clap::Args)]
pub struct SampleArgs {
    #[command(flatten)]
    model: Model,
    /// Images or texts at a time
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32], value_name = "B,…", value_parser = numbers::whole(1..=1 << 20))]
    batch: Vec<usize>,
    /// Sampling steps
    #[arg(long, value_delimiter = ',', default_values_t = [20], value_name = "S,…", value_parser = numbers::whole(1..=100_000))]
    steps: Vec<usize>,
    /// Guidance weight; 1 costs one pass per step, anything else two
    #[arg(long, default_value_t = 2.0, value_name = "W")]
    guidance: f32,
    /// How noise is drawn
    #[arg(long, default_value = "auto", value_name = "KIND", value_parser = one_of::<NoiseKind>(NOISES))]
    noise: NoiseKind,
    /// On a GPU: queue every kernel anew instead of replaying a captured graph
    #[arg(long)]
    no_graph: bool,
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    preset: String,
    device: String,
    batch: usize,
    #[serde(rename = "kfold")] // as in tables that were kept
    noisy_copies: usize,
    steps: usize,
    vocab: usize,
    tokens: usize,
    image: usize,
    parameters: usize,
    /// Median, fastest and slowest, in milliseconds.
    ms: f64,
    fastest: f64,
    slowest: f64,
    per_second: f64,
    /// Bytes: on a GPU of tensors, on the CPU of the whole process so far.
    peak: usize,
    /// Products alone, in milliseconds, and how much of the step they are.
    floor_ms: Option<f64>,
    share_of_floor: Option<f64>,
    /// Sampling on a GPU: median without a graph in milliseconds, kernels and products that are then queued, and what the graph
    /// holds.
    direct_ms: Option<f64>,
    launches: Option<u64>,
    graph_nodes: Option<usize>,
    graph_memory: Option<usize>,
    /// From the start of the command to the end of the first step, in seconds.
    first_s: f64,
}

/// Classes and tokens a preset is meant for: those of the data it was made for.
pub fn usual(preset: &str) -> (Task, usize, usize) {
    match preset {
        "vit-s16" | "vit-b16" | "vit-l16" | "vit-h14" => (Task::Class, 1000, 1),
        "shapes" => (Task::Caption, 26, 16),
        "caption-tiny" => (Task::Caption, 8000, 24),
        "coco-96" => (Task::Caption, 5000, 20),
        "caption" => (Task::Caption, 30_522, 32),
        "text" => (Task::Text, 53, 256),
        _ => (Task::Class, 10, 1),
    }
}

impl Model {
    fn open(&self) -> Result<Device> {
        if self.point {
            interrupt::install()?;
        }
        Ok(report::open_device_named(&self.device)?.device)
    }

    fn config(&self, batch: usize) -> Result<(Config, usize)> {
        let (task, vocab, tokens) = usual(&self.preset);
        let mut c = Config { model: ModelConfig::preset(&self.preset)?, ..Config::default() };
        c.data.task = task;
        c.data.tokens = self.tokens.unwrap_or(tokens);
        c.data.layout = Layout::Lines;
        c.train.batch = batch;
        c.model.gelu = if self.tanh { Gelu::Tanh } else { Gelu::Erf };
        if let Some(side) = self.image {
            c.model.encoder.image = side;
        }
        if let Some(kind) = self.condition_attention {
            c.model.denoiser.condition_attention = kind;
        }
        let vocab = self.vocab.unwrap_or(vocab);
        if vocab < 8 || batch == 0 || self.repeats == 0 {
            return Err(Failure::input("--vocab must be at least 8, --batch and --repeats at least 1"));
        }
        Ok((c, vocab))
    }

    fn row(&self, what: &'static str, c: &Config, device: &Device, times: Vec<f64>, first_s: f64) -> Row {
        let ms = median(times.clone());
        let sizes = c.sizes();
        let pick = |f: fn(f64, f64) -> f64| times.iter().copied().reduce(f).unwrap_or(ms);
        Row {
            what,
            preset: self.preset.clone(),
            device: device.to_string(),
            batch: c.train.batch,
            noisy_copies: 0,
            steps: 0,
            vocab: sizes.vocab,
            tokens: sizes.tokens,
            image: if c.model.condition == Conditioning::Image { c.model.encoder.image } else { 0 },
            parameters: 0,
            ms,
            fastest: pick(f64::min),
            slowest: pick(f64::max),
            per_second: c.train.batch as f64 / ms * 1e3,
            peak: peak(device),
            floor_ms: None,
            share_of_floor: None,
            direct_ms: None,
            launches: None,
            graph_nodes: None,
            graph_memory: None,
            first_s,
        }
    }

    /// The rows, and below them what a GPU spent its time on; beside other forms than Markdown that goes to stderr.
    fn print(&self, rows: &[Row], profiles: &[String]) -> Result<()> {
        let profiles: String = profiles.iter().map(|p| format!("\n{p}")).collect();
        if self.form.format() != Format::Markdown {
            profiles.lines().for_each(report::note);
        }
        match self.form.format() {
            Format::Json => report::print_json(&rows),
            Format::Csv => report::print(&csv(rows)?),
            Format::Markdown => report::print(&(text(rows) + &profiles)),
        }
    }
}

/// Most memory so far.
fn peak(device: &Device) -> usize {
    match device {
        Device::Cuda(c) => c.usage().peak,
        Device::Cpu => {
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
            line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0) << 10
        }
    }
}

/// Wait until the device has done everything.
fn finish(device: &Device) -> Result<()> {
    if let Device::Cuda(c) = device {
        c.synchronize()?;
    }
    Ok(())
}

/// Milliseconds of each of `repeats` calls, after two for warm-up; and when the first ended, in seconds since `start`.
fn time(device: &Device, repeats: usize, start: Instant, mut f: impl FnMut() -> Result<()>) -> Result<(Vec<f64>, f64)> {
    f()?;
    finish(device)?;
    let first = start.elapsed().as_secs_f64();
    f()?;
    finish(device)?;
    let mut all = Vec::new();
    for _ in 0..repeats {
        let begin = Instant::now();
        f()?;
        finish(device)?;
        all.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok((all, first))
}

pub fn train(args: &TrainArgs) -> Result<()> {
    let start = Instant::now();
    let device = args.model.open()?;
    profile::check(&device, args.model.profile)?;
    let progress = Progress::new();
    let (mut rows, mut profiles) = (Vec::new(), Vec::new());
    for &b in &args.batch {
        let (mut c, vocab) = args.model.config(b)?;
        (c.train.noisy_copies, c.train.recompute) = (args.noisy_copies, args.recompute);
        c.train.epochs = 1_000_000; // the learning rate does not end
        c.check_memory(&device)?; // before the data are made up
        progress.say("train", &format!("{} batch {b}", args.model.preset));
        let mut trainer = Trainer::new(&c, synthetic::training_set(&c, vocab)?, &device)?;
        let c = trainer.config.clone();
        let batch = synthetic::batch(&c, b);
        let e = &c.model.encoder;
        let images = match args.upload || batch.images.is_empty() {
            true => None,
            false => Some(Tensor::from_f32(&device, &[b, e.channels, e.image, e.image], batch.images.clone())?),
        };
        if let Device::Cuda(c) = &device {
            c.reset_peak();
        }
        let (times, first) = time(&device, args.model.repeats, start, || {
            trainer.step_on(&batch, images.as_ref())?;
            Ok(())
        })?;
        let mut row = args.model.row("train", &c, &device, times, first);
        row.noisy_copies = args.noisy_copies;
        row.parameters = count_parameters(&c.model, c.sizes())?.0;
        if args.model.profile > 0 {
            let step = || Ok(trainer.step_on(&batch, images.as_ref()).map(|_| ())?);
            profiles.push(profile::show(&device, args.model.profile, 3, step)?);
        }
        drop(trainer);
        if !args.no_floor {
            progress.say("products alone", &format!("{} batch {b}", args.model.preset));
            let timer = Timer { device: device.clone(), repeats: args.model.repeats.min(5) };
            let floor = floor::measure(&c, &Setup::new(device.clone(), false), &timer)?.0 * 1e3;
            (row.floor_ms, row.share_of_floor) = (Some(floor), Some(floor / row.ms));
        }
        rows.push(row);
    }
    drop(progress);
    args.model.print(&rows, &profiles)
}

/// Either kind of sampler on one batch.
struct BatchSampler<'a> {
    kind: Kind<'a>,
    images: Option<&'a Tensor>,
    ids: &'a [u32],
}

enum Kind<'a> {
    Classes(Box<ClassSampler<'a>>),
    Texts(Box<TokenSampler<'a>>),
}

impl<'a> BatchSampler<'a> {
    fn new(
        t: &'a Trained,
        s: &'a SampleConfig,
        task: Task,
        images: Option<&'a Tensor>,
        ids: &'a [u32],
    ) -> Result<BatchSampler<'a>> {
        let kind = match task {
            Task::Class => Kind::Classes(Box::new(ClassSampler::new(t, s)?)),
            _ => Kind::Texts(Box::new(TokenSampler::new(t, s)?)),
        };
        Ok(BatchSampler { kind, images, ids })
    }

    fn graphs(self, wanted: bool) -> BatchSampler<'a> {
        let kind = match self.kind {
            Kind::Classes(c) => Kind::Classes(Box::new(c.with_graphs(wanted))),
            Kind::Texts(g) => Kind::Texts(Box::new(g.with_graphs(wanted))),
        };
        BatchSampler { kind, ..self }
    }

    fn sample(&self) -> Result<()> {
        match (&self.kind, self.images) {
            (Kind::Classes(c), Some(images)) => c.logits(images, self.ids).map(drop)?,
            (Kind::Classes(_), None) => return Err(Failure::input("a classifier needs images")),
            (Kind::Texts(g), images) => g.generate(&Request::new(images, self.ids)).map(drop)?,
        }
        Ok(())
    }

    fn usage(&self) -> GraphUse {
        match &self.kind {
            Kind::Classes(c) => c.graph_use(),
            Kind::Texts(g) => g.graph_use(),
        }
    }
}

pub fn sample(args: &SampleArgs) -> Result<()> {
    let start = Instant::now();
    let device = args.model.open()?;
    profile::check(&device, args.model.profile)?;
    let progress = Progress::new();
    let (mut rows, mut profiles) = (Vec::new(), Vec::new());
    for &b in &args.batch {
        let (c, vocab) = args.model.config(b)?;
        c.check_memory(&device)?; // before the data are made up
        let trainer = Trainer::new(&c, synthetic::training_set(&c, vocab)?, &device)?;
        let (c, t) = (trainer.config.clone(), &trainer.trained);
        let batch = synthetic::batch(&c, b);
        let e = &c.model.encoder;
        let images = match batch.images.is_empty() {
            true => None,
            false => Some(Tensor::from_f32(&device, &[b, e.channels, e.image, e.image], batch.images.clone())?),
        };
        for &steps in &args.steps {
            if steps == 0 {
                return Err(Failure::input("--steps must be at least 1"));
            }
            progress.say("sample", &format!("{} batch {b}, {steps} steps", args.model.preset));
            let guidance = if images.is_some() { args.guidance } else { 1.0 };
            let s = SampleConfig { steps, guidance, noise: args.noise, ..SampleConfig::default() };
            if let Device::Cuda(c) = &device {
                c.reset_peak();
            }
            let sampler = BatchSampler::new(t, &s, c.data.task, images.as_ref(), &batch.indices)?;
            let mut row = match &device {
                Device::Cuda(gpu) => {
                    let direct = sampler.graphs(false);
                    let (times, first) = time(&device, args.model.repeats, start, || direct.sample())?;
                    if args.model.profile > 0 {
                        profiles.push(profile::show(&device, args.model.profile, 1, || direct.sample())?);
                    }
                    let (direct_ms, before) = (median(times.clone()), gpu.queued());
                    direct.sample()?;
                    let launches = gpu.queued() - before;
                    let mut row = args.model.row("sample", &c, &device, times, first);
                    if !args.no_graph {
                        let graphed = direct.graphs(true);
                        let (times, _) = time(&device, args.model.repeats, start, || graphed.sample())?;
                        let used = graphed.usage();
                        if let Some(why) = used.failure {
                            progress.say("no graph", &why);
                        }
                        row = args.model.row("sample", &c, &device, times, first);
                        (row.graph_nodes, row.graph_memory) = (Some(used.nodes), Some(used.memory));
                    }
                    (row.direct_ms, row.launches) = (Some(direct_ms), Some(launches));
                    row
                }
                Device::Cpu => {
                    let (times, first) = time(&device, args.model.repeats, start, || sampler.sample())?;
                    args.model.row("sample", &c, &device, times, first)
                }
            };
            row.steps = steps;
            row.parameters = count_parameters(&c.model, c.sizes())?.0;
            rows.push(row);
        }
    }
    drop(progress);
    args.model.print(&rows, &profiles)
}

fn csv<R: Serialize>(rows: &[R]) -> Result<String> {
    let mut out = String::new();
    for (i, r) in rows.iter().enumerate() {
        let value = serde_json::to_value(r).map_err(|e| Failure::ours(e.to_string()))?;
        let Some(map) = value.as_object() else { continue };
        if i == 0 {
            out += &format!("{}\n", map.keys().cloned().collect::<Vec<_>>().join(","));
        }
        let cell = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), String::from);
        out += &format!("{}\n", map.values().map(cell).collect::<Vec<_>>().join(","));
    }
    Ok(out)
}

fn text(rows: &[Row]) -> String {
    use Align::{Left, Right};
    let mut t = Table::new(&[
        ("what", Left),
        ("preset", Left),
        ("device", Left),
        ("batch", Right),
        ("K", Right),
        ("steps", Right),
        ("V × N", Right),
        ("ms", Right),
        ("fastest–slowest", Right),
        ("per second", Right),
        ("peak memory", Right),
        ("products alone ms", Right),
        ("their share", Right),
        ("without graph ms", Right),
        ("launches", Right),
        ("nodes", Right),
        ("first after s", Right),
    ]);
    let some = |x: usize| if x == 0 { "–".into() } else { x.to_string() };
    for r in rows {
        t.row(vec![
            r.what.into(),
            r.preset.clone(),
            r.device.clone(),
            r.batch.to_string(),
            some(r.noisy_copies),
            some(r.steps),
            format!("{} × {}", r.vocab, r.tokens),
            format!("{:.2}", r.ms),
            format!("{:.2}–{:.2}", r.fastest, r.slowest),
            format!("{:.1}", r.per_second),
            report::bytes(r.peak),
            r.floor_ms.map_or("–".into(), |f| format!("{f:.2}")),
            r.share_of_floor.map_or("–".into(), |s| format!("{:.0} %", 100.0 * s)),
            r.direct_ms.map_or("–".into(), |ms| format!("{ms:.2}")),
            r.launches.map_or("–".into(), |n| n.to_string()),
            r.graph_nodes.map_or("–".into(), |n| n.to_string()),
            format!("{:.1}", r.first_s),
        ]);
    }
    t.render()
}
