//! Who this process is among those that were started together, by the variables of what started it.

use super::refused;
use crate::error::Result;

/// Set by `tweedie train --gpus` for the processes that it starts.
const LAUNCHED: &str = "TWEEDIE_LAUNCHED";

/// Who this process is among those that were started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// This process, from 0.
    pub rank: usize,
    /// All processes.
    pub size: usize,
    /// This process among those on its machine, from 0.
    pub local_rank: usize,
    /// Processes on this machine.
    pub local_size: usize,
    /// What said so: "torchrun", "Slurm", "Open MPI", "PMI", "tweedie train --gpus".
    pub from: &'static str,
}

/// Names of the variables of one launcher.
struct Names {
    from: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const TORCHRUN: Names = Names {
    from: "torchrun",
    rank: "RANK",
    size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_size: "LOCAL_WORLD_SIZE",
};
const OPEN_MPI: Names = Names {
    from: "Open MPI",
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
const PMI: Names = Names {
    from: "PMI",
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
};
const SLURM: Names = Names {
    from: "Slurm",
    rank: "SLURM_PROCID",
    size: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_size: "",
};

/// The environment, or a test's idea of it.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process.
pub(super) fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

impl Ranks {
    /// What the environment says; nothing where this process was started alone.
    pub fn from_env() -> Result<Option<Ranks>> {
        Ranks::read(&process_env)
    }

    /// A process without others.
    pub fn alone() -> Ranks {
        Ranks { rank: 0, size: 1, local_rank: 0, local_size: 1, from: "nothing" }
    }

    /// The variables that make a process rank `rank` of `size` on this machine.
    pub fn launch_env(rank: usize, size: usize, port: u16) -> Vec<(&'static str, String)> {
        let [r, n] = [rank, size].map(|n| n.to_string());
        vec![
            (TORCHRUN.rank, r.clone()),
            (TORCHRUN.size, n.clone()),
            (TORCHRUN.local_rank, r),
            (TORCHRUN.local_size, n),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port.to_string()),
            (LAUNCHED, "1".into()),
        ]
    }

    /// torchrun comes first: it may itself be started by Slurm. Then mpirun, which may be too. Slurm counts only in a step: the
    /// script of a batch job has its variables as well, and is alone.
    fn read(env: Env) -> Result<Option<Ranks>> {
        if let Some(ranks) = TORCHRUN.read(env)? {
            let from = if env(LAUNCHED).is_some() { "tweedie train --gpus" } else { ranks.from };
            return Ok(Some(Ranks { from, ..ranks }));
        }
        for names in [OPEN_MPI, PMI] {
            if let Some(ranks) = names.read(env)? {
                return Ok(Some(ranks));
            }
        }
        if env("SLURM_STEP_ID").is_none() || env(SLURM.size).is_none() {
            return Ok(None);
        }
        let Some(ranks) = SLURM.read(env)? else { return Ok(None) };
        let node = env("SLURM_NODEID").and_then(|n| n.parse().ok()).unwrap_or(0);
        let tasks = env("SLURM_STEP_TASKS_PER_NODE").and_then(|t| tasks_of(&t, node));
        Ok(Some(Ranks { local_size: tasks.unwrap_or(ranks.size).max(ranks.local_rank + 1), ..ranks }))
    }

    /// Whether an MPI library would find the other ranks by what started this process.
    pub(super) fn has_mpi(&self, env: Env) -> bool {
        let by_slurm = self.from == SLURM.from && ["PMIX_RANK", "PMI_RANK", "PMI_FD"].iter().any(|v| env(v).is_some());
        self.from == OPEN_MPI.from || self.from == PMI.from || by_slurm
    }

    /// Where the ranks meet when no MPI brings them together: the machine of rank 0 and a port.
    pub(super) fn meeting(&self, env: Env) -> Result<(String, u16)> {
        let slurm = self.from == SLURM.from;
        let nodes = || env("SLURM_STEP_NODELIST").filter(|_| slurm).map(|list| first_host(&list));
        let missing = |name: &str, value: &str| {
            refused(format!(
                "{name} is not set, and the {} ranks of {} meet there: export {name}={value} for every rank",
                self.size, self.from
            ))
        };
        let host = env("MASTER_ADDR").or_else(nodes);
        let host = host.ok_or_else(|| missing("MASTER_ADDR", "(the machine of rank 0)"))?;
        // Jobs that share a node must not share a port.
        let job = || number(env, "SLURM_JOB_ID").ok().flatten().filter(|_| slurm).map(|id| 20_000 + id % 10_000);
        let port = number(env, "MASTER_PORT")?.or_else(job).ok_or_else(|| missing("MASTER_PORT", "29500"))?;
        // The agent of torchrun listens at the port itself.
        let taken = env("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v == "True");
        let port = if taken { port + 1 } else { port };
        let fits = u16::try_from(port).ok().filter(|p| *p > 0);
        Ok((host, fits.ok_or_else(|| refused(format!("MASTER_PORT is {port}; a port is from 1 to 65535")))?))
    }
}

impl Names {
    fn read(&self, env: Env) -> Result<Option<Ranks>> {
        let (rank, size) = match (number(env, self.rank)?, number(env, self.size)?) {
            (None, None) => return Ok(None),
            (Some(rank), Some(size)) => (rank, size),
            (rank, _) => {
                let (there, not) = if rank.is_some() { (self.rank, self.size) } else { (self.size, self.rank) };
                return Err(refused(format!(
                    "{there} is set but {not} is not: set both for every rank, or neither to run alone"
                )));
            }
        };
        let local_rank = number(env, self.local_rank)?.unwrap_or(0);
        let local_size = number(env, self.local_size)?.unwrap_or(local_rank + 1);
        let inside = |rank: usize, size: usize, names: [&str; 2]| match rank < size {
            true => Ok(()),
            false => {
                let [r, s] = names;
                Err(refused(format!("{r} is {rank} and {s} is {size}: ranks are numbered from 0 to {s} − 1")))
            }
        };
        inside(rank, size, [self.rank, self.size])?;
        inside(local_rank, local_size, [self.local_rank, self.local_size])?;
        Ok(Some(Ranks { rank, size, local_rank, local_size, from: self.from }))
    }
}

fn number(env: Env, name: &str) -> Result<Option<usize>> {
    let Some(value) = env(name) else { return Ok(None) };
    let read = value.trim().parse().ok().filter(|n| *n < 1 << 32);
    read.map(Some).ok_or_else(|| refused(format!("{name} is '{value}', which is not a number of ranks or a port")))
}

/// Tasks of node `node` in Slurm's form, `4(x2),3`.
fn tasks_of(list: &str, node: usize) -> Option<usize> {
    let mut nodes = 0_usize;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.trim_end_matches(')').parse().ok()?),
            None => (part, 1_usize),
        };
        nodes = nodes.checked_add(times)?;
        if node < nodes {
            return tasks.parse().ok();
        }
    }
    None
}

/// The first machine of Slurm's form, `gpu[07-12,20],login`.
fn first_host(list: &str) -> String {
    match list.split_once(['[', ',']) {
        Some((stem, rest)) if list[stem.len()..].starts_with('[') => {
            let first: String = rest.chars().take_while(char::is_ascii_digit).collect();
            format!("{stem}{first}")
        }
        Some((host, _)) => host.into(),
        None => list.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &str) -> impl Fn(&str) -> Option<String> + use<> {
        let pairs: Vec<(String, String)> =
            pairs.split_whitespace().filter_map(|p| p.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
        move |name| pairs.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone())
    }

    fn read(pairs: &str) -> Option<(usize, usize, usize, usize, &'static str)> {
        Ranks::read(&env(pairs)).unwrap().map(|r| (r.rank, r.size, r.local_rank, r.local_size, r.from))
    }

    #[test]
    fn each_launcher_is_understood() {
        assert_eq!(read("HOME=/root"), None);
        assert_eq!(
            read("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 SLURM_PROCID=0 SLURM_STEP_ID=0"),
            Some((5, 8, 1, 4, "torchrun"))
        );
        assert_eq!(read("RANK=1 WORLD_SIZE=2"), Some((1, 2, 0, 1, "torchrun")), "one process per pod");
        assert_eq!(
            read(
                "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=3 \
                 PMIX_RANK=2 SLURM_PROCID=0 SLURM_NTASKS=3"
            ),
            Some((2, 3, 2, 3, "Open MPI"))
        );
        assert_eq!(
            read("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=7"),
            Some((1, 2, 1, 2, "PMI"))
        );
        let step =
            "SLURM_PROCID=9 SLURM_STEP_NUM_TASKS=11 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=4(x2),3";
        assert_eq!(read(&format!("{step} SLURM_STEP_ID=0")), Some((9, 11, 1, 3, "Slurm")));
        assert_eq!(read("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0"), None, "the script of a batch job is alone");
    }

    #[test]
    fn the_launcher_of_this_program_is_told_from_torchrun() {
        let vars = Ranks::launch_env(2, 4, 4711);
        let text: Vec<String> = vars.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let e = env(&text.join(" "));
        let ranks = Ranks::read(&e).unwrap().unwrap();
        assert_eq!((ranks.rank, ranks.size, ranks.local_rank, ranks.local_size), (2, 4, 2, 4));
        assert_eq!(ranks.from, "tweedie train --gpus");
        assert_eq!(ranks.meeting(&e).unwrap(), ("127.0.0.1".into(), 4711));
    }

    #[test]
    fn half_an_environment_is_refused_by_the_name_of_the_variable() {
        let refused = |pairs: &str| Ranks::read(&env(pairs)).unwrap_err().to_string();
        assert!(refused("RANK=0").contains("RANK is set but WORLD_SIZE is not"));
        assert!(refused("WORLD_SIZE=2").contains("WORLD_SIZE is set but RANK is not"));
        assert!(refused("RANK=2 WORLD_SIZE=2").contains("RANK is 2 and WORLD_SIZE is 2"));
        assert!(refused("RANK=-1 WORLD_SIZE=2").contains("RANK is '-1'"));
        assert!(refused("RANK=1 WORLD_SIZE=2 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2").contains("LOCAL_RANK is 3"));
        assert!(refused("OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=2").contains("OMPI_COMM_WORLD_RANK is 'x'"));
    }

    #[test]
    fn ranks_meet_where_the_environment_says() {
        let at = |pairs: &str| {
            let e = env(pairs);
            Ranks::read(&e).unwrap().unwrap().meeting(&e).map_err(|e| e.to_string())
        };
        let torchrun = "RANK=0 WORLD_SIZE=2";
        assert!(at(torchrun).unwrap_err().contains("MASTER_ADDR is not set, and the 2 ranks of torchrun meet there"));
        assert!(at(&format!("{torchrun} MASTER_ADDR=a")).unwrap_err().contains("MASTER_PORT is not set"));
        let whole = format!("{torchrun} MASTER_ADDR=a MASTER_PORT=29500");
        assert_eq!(at(&whole).unwrap(), ("a".into(), 29500));
        assert_eq!(at(&format!("{whole} TORCHELASTIC_USE_AGENT_STORE=True")).unwrap().1, 29501);
        assert!(at(&format!("{torchrun} MASTER_ADDR=a MASTER_PORT=70000")).unwrap_err().contains("70000"));
        let slurm = "SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1234567";
        assert_eq!(at(&format!("{slurm} SLURM_STEP_NODELIST=gpu[07-12,20],x")).unwrap(), ("gpu07".into(), 24567));
        assert_eq!(at(&format!("{slurm} SLURM_STEP_NODELIST=a,b[1-2]")).unwrap().0, "a");
        assert_eq!(at(&format!("{slurm} SLURM_STEP_NODELIST=only")).unwrap().0, "only");
    }
}
