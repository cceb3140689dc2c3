//! `tweedie devices`: what was found to compute on, what was not, and why.

use serde::Serialize;
use tweedie_engine::comm::{self, Ranks};
use tweedie_engine::cuda::{self, Cuda, Info};
use tweedie_engine::{Device, cpu};

use crate::failure::Result;
use crate::report;

#[derive(clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    cpu: Cpu,
    driver: Library,
    nvrtc: Library,
    cublaslt: Library,
    nccl: Library,
    mpi: Library,
    ranks: Started,
    gpus: Vec<Gpu>,
    /// Why there is no GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_gpus: Option<String>,
    cache: Option<String>,
    auto: Auto,
}

#[derive(Serialize)]
struct Cpu {
    model: String,
    threads: usize,
    vectors: &'static str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Library {
    Found { file: String, version: String },
    Missing { missing: String },
}

#[derive(Serialize)]
struct Gpu {
    device: String,
    name: String,
    memory_total: usize,
    memory_free: Option<usize>,
    capability: String,
    multiprocessors: usize,
    l2: usize,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
}

/// Who this process is among those started with it.
#[derive(Serialize)]
#[serde(untagged)]
enum Started {
    Alone { alone: bool },
    Among { rank: usize, size: usize, local_rank: usize, local_size: usize, by: &'static str },
    Unclear { unclear: String },
}

impl Started {
    fn from_env() -> Started {
        match Ranks::from_env() {
            Ok(None) => Started::Alone { alone: true },
            Ok(Some(Ranks { rank, size, local_rank, local_size, from })) => {
                Started::Among { rank, size, local_rank, local_size, by: from }
            }
            Err(e) => Started::Unclear { unclear: e.to_string() },
        }
    }

    fn text(&self) -> String {
        match self {
            Started::Alone { .. } => "alone: nothing started others with this process".into(),
            Started::Among { rank, size, local_rank, local_size, by } => {
                format!("rank {rank} of {size}, {local_rank} of {local_size} on this machine, by {by}")
            }
            Started::Unclear { unclear } => unclear.clone(),
        }
    }
}

#[derive(Serialize)]
struct Auto {
    device: String,
    reason: String,
}

/// The processor's name.
pub fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|l| l.strip_prefix("model name").and_then(|l| l.split_once(':')));
    model.map_or_else(|| format!("unknown {} processor", std::env::consts::ARCH), |(_, m)| m.trim().to_string())
}

fn library(found: &std::result::Result<cuda::Found, String>) -> Library {
    match found {
        Ok(f) => Library::Found { file: f.file.clone(), version: f.version.clone() },
        Err(why) => Library::Missing { missing: why.clone() },
    }
}

fn gpu(info: &Info) -> Gpu {
    let free = Cuda::open(info.ordinal).and_then(|c| c.memory());
    Gpu {
        device: format!("cuda:{}", info.ordinal),
        name: info.name.clone(),
        memory_total: info.memory,
        memory_free: free.as_ref().ok().map(|m| m.0),
        capability: format!("{}.{}", info.capability.0, info.capability.1),
        multiprocessors: info.multiprocessors,
        l2: info.l2,
        unusable: free.err().map(|e| e.to_string()),
    }
}

fn look() -> Result<Report> {
    let libraries = cuda::libraries();
    let (gpus, no_gpus) = match cuda::devices() {
        Ok(all) if all.is_empty() => (Vec::new(), Some("the driver works but sees no GPU".to_string())),
        Ok(all) => (all.iter().map(gpu).collect(), None),
        Err(_) if libraries.driver.is_err() => (Vec::new(), Some("there is no driver".to_string())),
        Err(e) => (Vec::new(), Some(e.to_string())),
    };
    let auto = Device::open("auto")?;
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        cpu: Cpu { model: cpu_model(), threads: cpu::threads(), vectors: cpu::vectors() },
        driver: library(&libraries.driver),
        nvrtc: library(&libraries.nvrtc),
        cublaslt: library(&libraries.cublaslt),
        nccl: library(&comm::find_nccl()),
        mpi: library(&comm::find_mpi()),
        ranks: Started::from_env(),
        gpus,
        no_gpus,
        cache: cuda::cache_dir().map(|p| p.display().to_string()),
        auto: Auto { device: auto.device.to_string(), reason: auto.reason },
    })
}

impl Library {
    fn text(&self) -> String {
        match self {
            Library::Found { file, version } => format!("{version} ({file})"),
            Library::Missing { missing } => format!("missing: {missing}"),
        }
    }
}

impl Gpu {
    fn text(&self) -> String {
        let total = report::bytes(self.memory_total);
        let memory = self.memory_free.map_or(total.clone(), |f| format!("{} of {total} free", report::bytes(f)));
        let facts = format!(
            "{}: {memory}, compute capability {}, {} multiprocessors, {} of L2 cache",
            self.name,
            self.capability,
            self.multiprocessors,
            report::bytes(self.l2)
        );
        self.unusable.as_ref().map_or(facts.clone(), |why| format!("{facts}\n           not usable: {why}"))
    }
}

fn text(r: &Report) -> String {
    let mut lines = vec![
        ("cpu", format!("{}: {}, {} vectors", r.cpu.model, report::threads(r.cpu.threads), r.cpu.vectors)),
        ("driver", r.driver.text()),
        ("nvrtc", r.nvrtc.text()),
        ("cublaslt", r.cublaslt.text()),
        ("nccl", r.nccl.text()),
        ("mpi", r.mpi.text()),
        ("ranks", r.ranks.text()),
    ];
    lines.extend(r.gpus.iter().map(|g| (g.device.as_str(), g.text())));
    lines.extend(r.no_gpus.iter().map(|why| ("gpu", format!("none: {why}"))));
    let no_cache = "none: no folder can be written, so kernels are compiled anew by every run (set TWEEDIE_CACHE)";
    lines.push(("cache", r.cache.clone().unwrap_or_else(|| no_cache.into())));
    lines.push(("auto", format!("{} ({})", r.auto.device, r.auto.reason)));
    lines.iter().map(|(name, words)| format!("{name:<10} {words}\n")).collect()
}

pub fn run(args: &Args) -> Result<()> {
    let found = look()?;
    if args.json { report::print_json(&found) } else { report::print_words(&text(&found)) }
}
