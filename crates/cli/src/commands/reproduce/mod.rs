//! `tweedie reproduce`: tables and figures of the paper, trained, measured and written as a report.
//!
//! | file | what |
//! |---|---|
//! | `scale` | what there is to make, at which sizes |
//! | `variant` | the ways to train that are compared, the paper's model among them |
//! | `plan` | which runs there are, as resolved settings with a key each |
//! | `budget` | how many epochs fit a time |
//! | `existing` | runs that were trained elsewhere, used instead |
//! | `runs` | train what is missing, go on with what was interrupted |
//! | `measurements`, `regression` | measure finished runs; how networks trained by regression become classifiers |
//! | `caption_measurements` | captions and traces of finished runs |
//! | `experiments/` | one table or figure each: what it needs, what it shows |
//! | `section`, `html` | what an experiment shows, as data, text and a page |

mod budget;
mod caption_measurements;
mod existing;
mod experiments;
mod html;
mod measurements;
mod plan;
mod regression;
mod runs;
mod scale;
mod section;
mod variant;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use tweedie::files;
use tweedie::run_dir::Environment;

use crate::failure::{Failure, Result};
use crate::report::{self, note, terminal, with_bar};
use crate::shared::numbers;
use measurements::Measurements;
use plan::Plan;
use scale::{Scale, What, name_of};
use section::Section;

#[derive(clap::Args)]
pub struct Args {
    /// Which table or figure
    #[arg(value_enum, value_name = "WHAT")]
    what: What,
    /// Data and networks of which size
    #[arg(long, value_enum, default_value_t = Scale::Digits, value_name = "SCALE")]
    scale: Scale,
    /// Data of the scale; those of digits are inside the program
    #[arg(long, value_name = "PATH")]
    data: Option<String>,
    /// Data with captions, where a scale has classes and captions and they lie apart
    #[arg(long, value_name = "PATH")]
    caption_data: Option<String>,
    /// Train everything with seeds 0 to N−1
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// Epochs of every run (default: the recipe's)
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1_000_000))]
    epochs: Option<usize>,
    /// As many epochs, at most the recipe's, as all of it takes about this time: 90s, 10m, 2h
    #[arg(long, value_name = "TIME", value_parser = numbers::time, conflicts_with = "epochs")]
    budget: Option<Duration>,
    /// Change a setting of every run, e.g. --set train.batch=64 (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// The same for runs of classes alone
    #[arg(long = "class-set", value_name = "KEY=VALUE")]
    class_sets: Vec<String>,
    /// The same for runs of captions alone
    #[arg(long = "caption-set", value_name = "KEY=VALUE")]
    caption_sets: Vec<String>,
    /// A run trained elsewhere (its folder or one checkpoint) instead of one to train: tdd-plain=RUN, of seed 1 tdd-plain-s1=RUN
    #[arg(long = "use", value_name = "NAME=RUN")]
    uses: Vec<String>,
    /// Folder of a CLIP model saved by transformers, for CLIPScore
    #[arg(long, value_name = "FOLDER")]
    clip: Option<PathBuf>,
    /// Folder of runs and report; finished runs in it are used again (default: runs/reproduce-SCALE)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
}

pub fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("runs/reproduce-{}", name_of(args.scale))));
    let mut plan = Plan::new(args, 1.0)?;
    let choice = report::open_device(&args.device)?;
    if let Some(folder) = args.clip.as_ref().filter(|f| !f.join("config.json").exists()) {
        return Err(Failure::input(format!("--clip {}: there is no config.json in it", folder.display()))
            .hint("name a folder that transformers' save_pretrained wrote"));
    }
    note(&plan.said());
    note(&format!("device: {}", choice.device));
    terminal::catch_interrupts("step")?;
    if let Some(budget) = args.budget {
        plan = Plan::new(args, budget::share(&plan, budget, &out, &choice.device)?)?;
    }
    let finished = runs::complete(&plan, &out.join("runs"), &choice.device)?;
    let trained = started.elapsed().as_secs_f64();
    let mut measured = Measurements::new(&plan, &finished, &choice.device, args.clip.as_deref());
    let mut sections = Vec::new();
    for (i, &what) in plan.what.iter().enumerate() {
        let title = format!("measuring {} of {}: {}", i + 1, plan.what.len(), name_of(what));
        note(&title);
        terminal::is_at("measurement");
        let section = with_bar(&name_of(what), || experiments::make(what, &mut measured))?;
        write(&section, &out)?;
        sections.push(section);
    }
    let device = choice.device.to_string();
    let about = html::About {
        command: runs::command_line(),
        environment: Environment::now(device, tweedie_engine::cpu::threads()),
        seconds: started.elapsed().as_secs_f64(),
        training: trained,
    };
    let page = html::page(&about, &plan, &finished, &sections)?;
    let report_name = report_name(args.what);
    let report_path = out.join(format!("{report_name}.html"));
    files::write_atomic(&report_path, page.as_bytes())?;
    let summary = json!({
        "command": about.command,
        "environment": about.environment,
        "seconds": about.seconds,
        "scale": name_of(plan.scale),
        "said": plan.said(),
        "seeds": plan.seeds(),
        "runs": plan.runs.iter().zip(&finished).map(|(r, f)| json!({
            "key": r.key, "variant": r.variant.id(), "seed": r.seed,
            "epochs": r.existing.as_ref().map_or(r.config.train.epochs, |g| g.epochs), "planned_steps": r.steps,
            "steps": f.steps, "seconds": f.seconds, "reused": f.reused,
            "given": r.existing.as_ref().map(|g| json!({"run": g.path.display().to_string(), "differs": g.differs})),
        })).collect::<Vec<_>>(),
    });
    files::write_atomic(&out.join(format!("data/{report_name}.json")), &serde_json::to_vec_pretty(&summary)?)?;
    let tables: String = sections.iter().map(Section::to_text).collect();
    report::print(&format!("{}\n{tables}\nreport: {}\n", plan.said(), report_path.display()))?;
    note(&format!("took {}", report::duration(about.seconds)));
    Ok(())
}

/// Name of the report: one for each table or figure, so that none takes the place of another in the same folder.
fn report_name(what: What) -> String {
    if what == What::All { "report".into() } else { format!("report-{}", name_of(what)) }
}

/// Figures as SVG and PNG, data as CSV and JSON.
fn write(section: &Section, out: &Path) -> Result<()> {
    for f in &section.figures {
        report::save_figure(&f.drawing, &out.join("figures"), &f.name)?;
    }
    let data = out.join("data");
    std::fs::create_dir_all(&data)?;
    for d in section.all_data() {
        files::write_atomic(&data.join(format!("{}.csv", d.name)), d.csv().as_bytes())?;
        files::write_atomic(&data.join(format!("{}.json", d.name)), &serde_json::to_vec_pretty(&d.json())?)?;
    }
    Ok(())
}
