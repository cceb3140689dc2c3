//! `tweedie init`: a recipe for own data, this machine and a time.

use std::path::PathBuf;

use tweedie::files::write_atomic;

use crate::failure::{Failure, Result};
use crate::report;
use crate::shared::own_data::{self, OwnDataArgs};

#[derive(clap::Args)]
pub struct Args {
    /// Data: a folder or file, or embedded:digits, embedded:shapes
    data: String,
    #[command(flatten)]
    own: OwnDataArgs,
    /// File of the recipe (default: NAME.toml)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
}

pub fn run(args: &Args) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| format!("{}.toml", own_data::name(&args.data)).into());
    if out.exists() {
        let free = (2..).map(|n| out.with_extension(format!("{n}.toml"))).find(|p| !p.exists()).unwrap_or_default();
        return Err(Failure::input(format!("{} is there already and stays as it is", out.display())).hint(format!(
            "tweedie init {} --out {}",
            args.data,
            free.display()
        )));
    }
    let choice = report::open_device(&args.device)?;
    let plan = own_data::plan(&args.data, &args.own, &[], false, &choice.device)?;
    write_atomic(&out, own_data::recipe(&plan, &args.own).as_bytes())?;
    report::note(&format!("found:   {}", own_data::found(&plan.facts)));
    own_data::tell(&plan);
    report::print(&format!("{}\n", out.display()))?;
    report::note(&format!("next: tweedie train {}", out.display()));
    Ok(())
}
