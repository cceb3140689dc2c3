//! `tweedie bench scale`: a training step over the ranks that this was started with, against the same rows alone.

use std::time::Instant;

use serde::Serialize;
use tweedie::config::Config;
use tweedie::data::{Batch, Part};
use tweedie::train::Trainer;
use tweedie_engine::Device;
use tweedie_engine::comm::{Comm, Usage};

use super::{Model, csv, median, synthetic, time};
use crate::commands::bench::form::Format;
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Progress, Table};
use crate::shared::numbers;
use crate::shared::ranks::CommArgs;

#[derive(clap::Args)]
pub struct ScaleArgs {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    comm: CommArgs,
    /// Weak scaling: images or texts of each rank
    #[arg(long, default_value_t = 32, value_name = "B", value_parser = numbers::whole(1..=1 << 20))]
    batch: usize,
    /// Strong scaling: images or texts of all ranks together
    #[arg(long, default_value_t = 128, value_name = "B", value_parser = numbers::whole(1..=1 << 20))]
    global_batch: usize,
    /// Noisy copies of each
    #[arg(long, default_value_t = 4, value_name = "K", value_parser = numbers::whole(1..=1 << 16))]
    noisy_copies: usize,
    /// Spread the optimizer's state over the ranks (train.shard_optimizer)
    #[arg(long)]
    shard_optimizer: bool,
    /// MB of gradients that are summed together (train.bucket_mb)
    #[arg(long, default_value_t = 25, value_name = "MB", value_parser = numbers::whole(1..=1 << 16))]
    bucket_mb: usize,
}

#[derive(Serialize)]
struct Row {
    scaling: &'static str,
    preset: String,
    device: String,
    ranks: usize,
    by: String,
    /// Of this rank, and of all.
    batch: usize,
    global_batch: usize,
    /// Milliseconds of a step, and of one on the same rows alone.
    step_ms: f64,
    compute_ms: f64,
    /// Of those, how long this rank waited for the others; how long the network was busy; how much of that was hidden.
    waited_ms: f64,
    busy_ms: f64,
    hidden_ms: f64,
    /// Sent by this rank in a step.
    sent_mb: f64,
    per_second: f64,
    /// Time alone over time together.
    efficiency: f64,
    /// The optimizer's state at this rank, and all of it.
    state_mb: f64,
    whole_state_mb: f64,
}

pub fn scale(args: &ScaleArgs) -> Result<()> {
    let place = args.comm.meet(&args.model.device)?;
    place.attend(|| {
        let (comm, device) = (place.comm.as_ref(), &place.choice.device);
        let ranks = comm.map_or(1, Comm::size);
        if args.global_batch < ranks {
            return Err(Failure::input(format!("--global-batch {} is less than {ranks} ranks", args.global_batch)));
        }
        let progress = Progress::new();
        let mut rows = Vec::new();
        for (scaling, global) in [("weak", args.batch * ranks), ("strong", args.global_batch)] {
            progress.say(scaling, &format!("{} batch {global} over {ranks}", args.model.preset));
            rows.push(measure(args, scaling, global, comm, device)?);
        }
        drop(progress);
        match place.rank() {
            0 => print(args, &rows),
            _ => Ok(()),
        }
    })
}

fn config(args: &ScaleArgs, batch: usize) -> Result<(Config, usize)> {
    let (mut c, vocab) = args.model.config(batch)?;
    (c.train.noisy_copies, c.train.epochs) = (args.noisy_copies, 1_000_000); // the learning rate does not end
    (c.train.shard_optimizer, c.train.bucket_mb) = (args.shard_optimizer, args.bucket_mb);
    Ok((c, vocab))
}

fn trainer(args: &ScaleArgs, batch: usize, device: &Device) -> Result<Trainer> {
    let (c, vocab) = config(args, batch)?;
    Ok(Trainer::new(&c, synthetic::training_set(&c, vocab)?, device)?)
}

/// Median milliseconds of steps on `batch`.
fn steps(args: &ScaleArgs, t: &mut Trainer, batch: &Batch, device: &Device) -> Result<f64> {
    let (times, _) = time(device, args.model.repeats, Instant::now(), || {
        t.train_step(batch)?;
        Ok(())
    })?;
    Ok(median(times))
}

fn measure(
    args: &ScaleArgs,
    scaling: &'static str,
    global: usize,
    comm: Option<&Comm>,
    device: &Device,
) -> Result<Row> {
    let part = Part { rank: comm.map_or(0, Comm::rank), ranks: comm.map_or(1, Comm::size) };
    let rows = part.of(global);
    let mut alone = trainer(args, rows.len(), device)?;
    let batch = synthetic::batch(&alone.config, rows.len());
    // All ranks at once: they may share a machine.
    comm.map_or(Ok(()), Comm::barrier)?;
    let compute_ms = steps(args, &mut alone, &batch, device)?;
    drop(alone);
    let mut together = trainer(args, global, device)?;
    if let Some(comm) = comm {
        together = together.with_comm(comm.clone())?;
    }
    let batch = Batch { part: rows.clone(), global, ..batch };
    let usage = || comm.map_or_else(Usage::default, Comm::usage);
    comm.map_or(Ok(()), Comm::barrier)?;
    let before = usage();
    let step_ms = steps(args, &mut together, &batch, device)?;
    let after = usage();
    let each = |total: f64| total / (args.model.repeats + 2) as f64; // two for warm-up
    let waited_ms = each((after.waited - before.waited).as_secs_f64() * 1e3);
    let busy_ms = each((after.busy - before.busy).as_secs_f64() * 1e3);
    let (state, whole) = together.optimizer().state_bytes();
    Ok(Row {
        scaling,
        preset: args.model.preset.clone(),
        device: device.to_string(),
        ranks: part.ranks,
        by: comm.map_or_else(|| "alone".into(), Comm::describe),
        batch: rows.len(),
        global_batch: global,
        step_ms,
        compute_ms,
        waited_ms,
        busy_ms,
        hidden_ms: (busy_ms - waited_ms).max(0.0),
        sent_mb: each((after.bytes - before.bytes) as f64) / 1e6,
        per_second: global as f64 / step_ms * 1e3,
        efficiency: compute_ms / step_ms,
        state_mb: state as f64 / 1e6,
        whole_state_mb: whole as f64 / 1e6,
    })
}

fn print(args: &ScaleArgs, rows: &[Row]) -> Result<()> {
    match args.model.form.format() {
        Format::Json => report::print_json(&rows),
        Format::Csv => report::print(&csv(rows)?),
        Format::Markdown => report::print(&text(rows)),
    }
}

fn text(rows: &[Row]) -> String {
    use Align::{Left, Right};
    let mut t = Table::new(&[
        ("scaling", Left),
        ("ranks", Right),
        ("by", Left),
        ("batch", Right),
        ("of all", Right),
        ("step", Right),
        ("alone", Right),
        ("waited", Right),
        ("hidden", Right),
        ("sent", Right),
        ("per s", Right),
        ("efficiency", Right),
        ("state", Right),
    ]);
    let ms = |x: f64| format!("{x:.1} ms");
    for r in rows {
        t.row(vec![
            r.scaling.into(),
            r.ranks.to_string(),
            r.by.clone(),
            r.batch.to_string(),
            r.global_batch.to_string(),
            ms(r.step_ms),
            ms(r.compute_ms),
            ms(r.waited_ms),
            ms(r.hidden_ms),
            format!("{:.1} MB", r.sent_mb),
            format!("{:.0}", r.per_second),
            format!("{:.0} %", 100.0 * r.efficiency),
            format!("{:.1} of {:.1} MB", r.state_mb, r.whole_state_mb),
        ]);
    }
    t.render()
}
