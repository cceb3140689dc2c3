//! Commands that several ranks work on: which device each has, and how they meet.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tweedie::peers::Peers;
use tweedie_engine::comm::{Comm, Ranks, Which, connect};
use tweedie_engine::{Choice, cuda};

use crate::failure::{Failure, Result};
use crate::report;
use crate::report::terminal::{self, Level};

#[derive(clap::Args)]
pub struct CommArgs {
    /// With several ranks: what connects them
    #[arg(long = "comm", value_name = "W", default_value = "auto", value_parser = which())]
    which: Which,
    /// With several ranks: seconds until one that does not answer is given up
    #[arg(long = "comm-timeout", value_name = "S", default_value_t = 60.0)]
    timeout: f64,
}

fn which() -> impl TypedValueParser<Value = Which> {
    PossibleValuesParser::new(["auto", "nccl", "mpi"]).try_map(|name| name.parse::<Which>())
}

/// Where this rank computes, and the others.
pub struct Place {
    pub choice: Choice,
    /// Where there are several.
    pub comm: Option<Comm>,
}

impl Place {
    /// This rank, 0 if it is alone.
    pub fn rank(&self) -> usize {
        self.comm.as_ref().map_or(0, Comm::rank)
    }

    /// What the first rank has of something that ranks may come to differently, such as what was measured.
    pub fn of_first<T: Serialize + DeserializeOwned + Clone>(&self, mine: &T) -> Result<T> {
        let peers = self.comm.clone().map_or_else(Peers::default, Peers::new);
        Ok(peers.tell(mine)?.into_iter().next().unwrap_or_else(|| mine.clone()))
    }

    /// Do the work of this rank. If that fails, the others hear why.
    pub fn attend<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work();
        if let (Err(failure), Some(comm)) = (&done, &self.comm)
            && !failure.is_interrupted()
        {
            comm.leave(&failure.in_short());
        }
        done
    }
}

impl CommArgs {
    /// Open the device called `name`, or this rank's where it is not said which, and meet the other ranks if there are any. Only rank
    /// 0 talks from then on; errors are shown by all.
    pub fn meet(&self, name: &str) -> Result<Place> {
        let ranks = Ranks::from_env()?.unwrap_or_else(Ranks::alone);
        quiet_but_first(&ranks);
        tweedie::data::share_memory(ranks.local_size);
        let choice = report::open_device(&device_of(&ranks, name))?;
        // One rank needs no library, but may be told to use one: to see what that costs.
        let wanted = ranks.size > 1 || self.which != Which::Auto;
        let comm = wanted.then(|| self.connect(&ranks, &choice)).transpose()?;
        Ok(Place { choice, comm })
    }

    /// As [`CommArgs::meet`], also for a rank without others.
    pub fn meet_or_alone(&self, name: &str) -> Result<(Choice, Comm)> {
        let ranks = Ranks::from_env()?.unwrap_or_else(Ranks::alone);
        quiet_but_first(&ranks);
        let choice = report::open_device_named(&device_of(&ranks, name))?;
        let comm = self.connect(&ranks, &choice)?;
        Ok((choice, comm))
    }

    fn connect(&self, ranks: &Ranks, choice: &Choice) -> Result<Comm> {
        let seconds = Duration::try_from_secs_f64(self.timeout).ok().filter(|d| d.as_secs_f64() >= 1.0);
        let timeout = seconds.ok_or_else(|| Failure::input("--comm-timeout takes seconds, 1 or more"))?;
        Ok(connect(ranks, &choice.device, self.which, timeout)?)
    }
}

fn quiet_but_first(ranks: &Ranks) {
    if ranks.rank > 0 {
        terminal::set_level(Level::Quiet);
    }
}

/// The device of a rank: its own GPU, where there are enough, else one of those that are there.
fn device_of(ranks: &Ranks, name: &str) -> String {
    match name {
        "auto" | "cuda" if ranks.size > 1 => match cuda::devices().map_or(0, |all| all.len()) {
            0 => name.into(),
            gpus => format!("cuda:{}", ranks.local_rank % gpus),
        },
        _ => name.into(),
    }
}

/// "3 ranks by Open MPI 4.1.4".
pub fn in_words(comm: &Comm) -> String {
    let noun = if comm.size() == 1 { "rank" } else { "ranks" };
    format!("{} {noun} by {}", comm.size(), comm.describe())
}

/// Say so where several processes were started and the command is one that each of them does alone.
pub fn note_unused() {
    if let Ok(Some(ranks)) = Ranks::from_env()
        && ranks.size > 1
        && ranks.rank == 0
    {
        let (n, by) = (ranks.size, ranks.from);
        report::note(&format!(
            "note: {n} processes were started by {by}, and each does all of this; only training shares its work"
        ));
    }
}

/// Threads of a rank where nobody says how many: a fair share of the machine, unless what started it has given it cores of its own. 0
/// is all.
pub fn threads() -> usize {
    let local = Ranks::from_env().ok().flatten().map_or(1, |r| r.local_size);
    let own = |pid: &str| allowed(&std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default());
    if local == 1 || own("self") < own(&parent()) {
        return 0;
    }
    (std::thread::available_parallelism().map_or(1, usize::from) / local).max(1)
}

fn parent() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix("PPid:")).unwrap_or_default().trim().into()
}

/// Cores that a process may run on, by its `/proc/PID/status`: `Cpus_allowed_list: 0-3,8`.
fn allowed(status: &str) -> Option<usize> {
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?.trim();
    let cores = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some((last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?)?),
        None => part.parse::<usize>().ok().map(|_| 1),
    };
    list.split(',').map(cores).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted() {
        assert_eq!(allowed("Name:\tx\nCpus_allowed_list:\t0-3,8,10-11\n"), Some(7));
        assert_eq!(allowed("Cpus_allowed_list:\t5\n"), Some(1));
        assert_eq!((allowed(""), allowed("Cpus_allowed_list:\tx")), (None, None));
    }
}
