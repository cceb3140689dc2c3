//! `tweedie train --gpus N`: one process per GPU of this machine, started, watched and ended together.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tweedie::interrupt;
use tweedie_engine::comm::Ranks;
use tweedie_engine::cuda;

use crate::failure::{Failure, Result};
use crate::report::terminal;

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);
/// What ranks have left to save and end when one of them has failed.
const GRACE: Duration = Duration::from_secs(20);

/// Start `n` ranks with the arguments of this command, and wait for all.
pub fn run(n: usize) -> Result<()> {
    check(n, Ranks::from_env()?, cuda::devices().map_or(0, |all| all.len()))?;
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).map(|a| a.port());
    let port =
        port.map_err(|e| Failure::input("there is no free port for the ranks to meet at").cause(e.to_string()))?;
    let program =
        std::env::current_exe().map_err(|e| Failure::ours("this program is not found").cause(e.to_string()))?;
    let args = without_gpus(std::env::args_os().skip(1));
    interrupt::install()?;
    let mut ranks = Vec::new();
    for rank in 0..n {
        match start(&program, &args, rank, n, port) {
            Ok(child) => ranks.push(child),
            Err(e) => {
                end(&mut ranks, Duration::ZERO);
                return Err(Failure::ours(format!("rank {rank} cannot be started")).cause(e.to_string()));
            }
        }
    }
    attend(&mut ranks)
}

/// What keeps ranks from being started.
fn check(n: usize, already: Option<Ranks>, gpus: usize) -> Result<()> {
    if let Some(r) = already.filter(|r| r.size > 1) {
        let why = format!("this process is rank {} of {} already, by {}", r.rank, r.size, r.from);
        return Err(Failure::input("--gpus starts the ranks itself").cause(why).hint("leave --gpus out"));
    }
    if gpus == 0 {
        return Err(Failure::input("--gpus needs GPUs, and this machine has none that can be used")
            .cause("ranks on the CPU are started by mpirun: mpirun -np 2 tweedie train …")
            .hint("tweedie devices"));
    }
    let may_share = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|v| v == "1");
    if n > gpus && !may_share {
        return Err(Failure::input(format!("there are more ranks than GPUs: --gpus {n}, and this machine has {gpus}"))
            .cause("each rank needs a GPU of its own; ranks that share one are started by mpirun")
            .hint("tweedie devices"));
    }
    Ok(())
}

/// The arguments of a rank: those of this command but --gpus.
fn without_gpus(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if text == "--gpus" {
            args.next();
        } else if !text.starts_with("--gpus=") {
            kept.push(arg);
        }
    }
    kept
}

/// Rank 0 has this terminal; what the others say on stderr is passed on with their number before it.
fn start(program: &std::path::Path, args: &[OsString], rank: usize, n: usize, port: u16) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command.args(args).envs(Ranks::launch_env(rank, n, port)).stdin(Stdio::null());
    if rank > 0 {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    }
    let mut child = command.spawn()?;
    if let Some(err) = child.stderr.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(std::io::Result::ok) {
                terminal::say(&format!("rank {rank}: {line}"));
            }
        });
    }
    Ok(child)
}

/// Wait until all have ended. When one fails the others are asked to end, then made to; a signal that asks this process to stop is
/// passed on, so that the run is saved.
fn attend(ranks: &mut [Child]) -> Result<()> {
    let mut ended: Vec<Option<ExitStatus>> = vec![None; ranks.len()];
    let mut told = false;
    while ended.iter().any(Option::is_none) {
        for (rank, (child, ended)) in ranks.iter_mut().zip(&mut ended).enumerate().filter(|(_, (_, e))| e.is_none()) {
            *ended =
                child.try_wait().map_err(|e| Failure::ours(format!("rank {rank} is lost")).cause(e.to_string()))?;
        }
        if interrupt::requested() && !told {
            told = true;
            ranks.iter().for_each(ask_to_end);
        }
        let failed = ended.iter().enumerate().find_map(|(rank, e)| Some((rank, e.filter(|s| !s.success())?)));
        if let Some((rank, status)) = failed {
            end(ranks, GRACE);
            let interrupted = told && status.code() == Some(interrupt::EXIT_CODE);
            return Err(if interrupted { Failure::interrupted() } else { failure(rank, status) });
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn failure(rank: usize, status: ExitStatus) -> Failure {
    let words = match status.code() {
        Some(code) => format!("it exited with code {code}; its messages are above"),
        None => format!("it was ended from outside: {status}"),
    };
    Failure::input(format!("rank {rank} has failed, and all ranks were ended")).cause(words)
}

/// Ask those that run to end, and make them after `grace`.
fn end(ranks: &mut [Child], grace: Duration) {
    let until = Instant::now() + grace;
    let running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
    ranks.iter().for_each(ask_to_end);
    while Instant::now() < until && ranks.iter_mut().any(running) {
        std::thread::sleep(LOOK);
    }
    for child in ranks.iter_mut() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The signal that job schedulers send: a training saves and stops. One that has ended is not in the way: its number is not given
/// to another process before it was waited for.
fn ask_to_end(child: &Child) {
    #[cfg(unix)]
    // SAFETY: sends a signal to a child of this process.
    unsafe {
        libc::kill(child.id() as libc::pid_t, libc::SIGTERM);
    }
    #[cfg(not(unix))]
    let _ = child;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_the_arguments_of_the_command() {
        let given =
            ["train", "digits", "--gpus", "4", "--out", "x", "--gpus=2", "--set", "a=--gpus"].map(OsString::from);
        let kept = without_gpus(given.into_iter());
        assert_eq!(kept, ["train", "digits", "--out", "x", "--set", "a=--gpus"]);
    }

    #[test]
    fn what_cannot_be_started_is_told() {
        let text = |n, already, gpus| check(n, already, gpus).err().map(|f| f.to_string()).unwrap_or_default();
        assert_eq!(text(2, None, 2), "");
        assert!(text(2, None, 0).contains("mpirun -np 2 tweedie train"));
        assert!(text(4, None, 2).contains("more ranks than GPUs: --gpus 4, and this machine has 2"));
        let rank = Ranks { rank: 1, size: 3, local_rank: 1, local_size: 3, from: "Open MPI" };
        assert!(text(2, Some(rank), 2).contains("rank 1 of 3 already, by Open MPI"));
    }

    /// Processes that are no ranks will do: one fails, the others are ended.
    #[test]
    #[cfg(unix)]
    fn one_that_fails_ends_all() {
        let sh = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut ranks = [sh("sleep 60"), sh("exit 3"), sh("exit 0")];
        let start = Instant::now();
        let text = attend(&mut ranks).unwrap_err().to_string();
        assert!(text.contains("rank 1 has failed") && text.contains("code 3"), "{text}");
        assert!(start.elapsed() < GRACE, "a rank that can end is not waited for");
        let mut ranks = [sh("exit 0"), sh("kill -KILL $$")];
        assert!(attend(&mut ranks).unwrap_err().to_string().contains("signal"));
        assert!(attend(&mut [sh("exit 0"), sh("sleep 0.2")]).is_ok());
    }
}
