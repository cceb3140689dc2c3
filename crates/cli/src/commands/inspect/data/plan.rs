//! `tweedie data inspect --plan RANKS`: which files each rank would read.

use tweedie::augment::Transform;
use tweedie::config::Config;
use tweedie::data::{Dataset, LoaderConfig, Plan, RankPlan, Sequences};
use tweedie::recipe::resolve_text;

use super::Args;
use crate::failure::Result;
use crate::report::{self, Align, Table};
use crate::shared::recipe;

/// Files of a rank, and blocks that ranks share, that are named; JSON has all.
const NAMED: usize = 4;

/// The settings that a plan is for.
pub fn settings(args: &Args) -> Result<Config> {
    let (config, _) = match &args.recipe {
        Some(recipe) => recipe::resolve(recipe, &args.sets, &[])?,
        None => resolve_text("the defaults", "", &args.sets, &[])?,
    };
    Ok(config)
}

pub fn of_classes(args: &Args, config: &Config, set: &Dataset, ranks: usize) -> Result<()> {
    let transform = Transform::train(&config.augment, config.model.encoder.image, set.channels)?;
    show(args, config, &Plan::classes(set.train()?.clone(), transform, &loading(config), ranks, args.epoch)?)
}

pub fn of_sequences(args: &Args, config: &Config, sequences: Sequences, ranks: usize) -> Result<()> {
    show(args, config, &Plan::sequences(sequences, &loading(config), ranks, args.epoch)?)
}

/// As in training.
fn loading(config: &Config) -> LoaderConfig {
    LoaderConfig { lanes: config.data.lanes, ..LoaderConfig::train(config.train.batch, config.seed) }
}

fn show(args: &Args, config: &Config, plan: &Plan) -> Result<()> {
    if args.json { report::print_json(plan) } else { report::print_words(&text(plan, config)) }
}

fn text(plan: &Plan, config: &Config) -> String {
    let count = |n: usize| report::count(n);
    let mut out = format!(
        "training split, epoch {} of seed {}: {} examples, {} batches of {} over {} ranks; {} left out\n",
        plan.epoch,
        config.seed,
        count(plan.examples),
        count(plan.batches),
        plan.batch,
        plan.ranks.len(),
        plan.left_out,
    );
    out += &way(plan, config);
    let names = ["rank", "rows", "examples", "batches", "files", "blocks", "bytes", "held", "partners"];
    let columns: Vec<(&str, Align)> = names.iter().map(|n| (*n, Align::Right)).collect();
    let mut table = Table::new(&columns);
    for r in &plan.ranks {
        table.row(vec![
            r.rank.to_string(),
            format!("{}–{}", r.rows[0], r.rows[1].saturating_sub(1)),
            count(r.examples),
            count(plan.batches),
            r.files.len().to_string(),
            r.blocks.to_string(),
            report::size(r.bytes),
            report::size(r.held),
            count(r.partners),
        ]);
    }
    out += &format!("\n{}\n", table.shown());
    plan.ranks.iter().filter(|r| !r.files.is_empty()).for_each(|r| out += &files(r));
    out + &twice(plan)
}

/// How the set is read, in words.
fn way(plan: &Plan, config: &Config) -> String {
    let (ranks, lanes, memory) = (plan.ranks.len(), plan.lanes, config.data.memory);
    if plan.blocks == 0 {
        return "every example is read by itself, by the rank that has its row\n".into();
    }
    if !plan.streamed {
        return format!(
            "its {} blocks fit into data.memory = {memory} MiB, so it is shuffled as a whole and ranks read examples of the same files; \
             --set data.lanes=24 would give each rank files of its own\n",
            plan.blocks
        );
    }
    let mut out = format!("streamed: {} blocks in {lanes} lanes\n", plan.blocks);
    if !lanes.is_multiple_of(ranks) {
        out += &format!(
            "{ranks} ranks do not divide {lanes} lanes: neighbours share the files of a lane; set data.lanes to a multiple of {ranks}\n"
        );
    }
    let most = plan.ranks.iter().map(|r| r.held).max().unwrap_or(0);
    if most > config.data.memory_bytes() as u64 {
        out += &format!(
            "a rank needs up to {} of blocks at a time and data.memory is {memory} MiB: some would be read again; raise it, or lower data.lanes\n",
            report::size(most)
        );
    }
    out
}

fn files(rank: &RankPlan) -> String {
    let name = |f: &tweedie::data::FilePlan| {
        let file =
            f.file.file_name().map_or_else(|| f.file.display().to_string(), |n| n.to_string_lossy().into_owned());
        format!("{file} (blocks: {}, examples: {}, {})", f.blocks, report::count(f.examples), report::size(f.bytes))
    };
    let more = rank.files.len().saturating_sub(NAMED);
    let mut named: Vec<String> = rank.files.iter().take(NAMED).map(name).collect();
    if more > 0 {
        named.push(format!("{more} more files (--json names all)"));
    }
    format!("rank {}: {}\n", rank.rank, named.join(", "))
}

/// What is read more than once.
fn twice(plan: &Plan) -> String {
    let again: u64 = plan.shared.iter().map(|s| s.again).sum();
    let partners: usize = plan.ranks.iter().map(|r| r.partners).sum();
    let mut out = String::new();
    if partners > 0 {
        out += &format!("read by two ranks, to be mixed: {} examples\n", report::count(partners));
    }
    if again == 0 {
        if partners == 0 {
            out += "read twice: nothing\n";
        }
        if !plan.shared.is_empty() {
            out += &format!("{} blocks belong to several ranks, and each reads its own examples\n", plan.shared.len());
        }
        return out;
    }
    out += &format!("read by several ranks: {} blocks, {} more than once\n", plan.shared.len(), report::size(again));
    for s in plan.shared.iter().take(NAMED) {
        let ranks: Vec<String> = s.ranks.iter().map(|r| r.to_string()).collect();
        out += &format!("  {}, block {}, by ranks {}\n", s.file.display(), s.number, ranks.join(", "));
    }
    if plan.shared.len() > NAMED {
        out += &format!("  and {} more (--json names all)\n", plan.shared.len() - NAMED);
    }
    out
}
