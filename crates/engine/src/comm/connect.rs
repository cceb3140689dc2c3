//! How the ranks of a job find each other, and which library they then use.

use std::net::UdpSocket;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::heartbeat::Alive;
use super::ranks::process_env;
use super::rendezvous::{Door, Link, named};
use super::worker::Worker;
use super::{Comm, Ranks, Transport, nccl, refused};
use crate::device::Device;
use crate::error::{Error, Result};

/// Which library carries the collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// NCCL where each rank has its own GPU and the library is there, else MPI.
    #[default]
    Auto,
    /// NCCL or an error.
    Nccl,
    /// MPI or an error.
    Mpi,
}

impl FromStr for Which {
    type Err = Error;

    fn from_str(name: &str) -> Result<Which> {
        match name {
            "auto" => Ok(Which::Auto),
            "nccl" => Ok(Which::Nccl),
            "mpi" => Ok(Which::Mpi),
            _ => Err(refused(format!("'{name}' does not connect ranks; use auto, nccl or mpi"))),
        }
    }
}

/// Meet the other ranks. Waits for each step at most `timeout`; so does every operation afterwards.
pub fn connect(ranks: &Ranks, device: &Device, which: Which, timeout: Duration) -> Result<Comm> {
    let alone = ranks.size == 1 && *device == Device::Cpu && which == Which::Auto;
    let by_mpi = ranks.has_mpi(&process_env) || which == Which::Mpi || alone;
    let mpi = by_mpi.then(|| Worker::start(ranks, device, timeout));
    let meeting = ranks.meeting(&process_env);
    match (mpi, which, &meeting) {
        (Some(Ok(worker)), ..) => over_mpi(ranks, device, which, timeout, Arc::new(worker)),
        // Without MPI, NCCL may still be: the ranks meet where the environment says.
        (Some(Err(e)), Which::Mpi, _) | (Some(Err(e)), _, Err(_)) => Err(e),
        _ => over_tcp(ranks, device, which, timeout),
    }
}

/// What each rank tells the others.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    host: String,
    /// The GPU's identity; nothing on a CPU.
    gpu: Option<String>,
    /// The version of NCCL, or nothing and why.
    nccl: Option<String>,
    no_nccl: String,
    /// Where rank 0 listens for heartbeats, its address, and a word that only this job knows.
    port: u16,
    address: String,
    token: String,
}

impl Facts {
    fn of(device: &Device) -> Result<Facts> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string();
        let (gpu, nccl) = match device {
            Device::Cpu => (None, Err(String::new())),
            Device::Cuda(c) => (Some(c.uuid()?), nccl::find()),
        };
        let (nccl, no_nccl) = match nccl {
            Ok(found) => (Some(found.version), String::new()),
            Err(why) => (None, why.replace('\n', " ")),
        };
        Ok(Facts { host, gpu, nccl, no_nccl, ..Facts::default() })
    }

    fn encode(&self) -> Vec<u8> {
        let [gpu, nccl] = [&self.gpu, &self.nccl].map(|f| f.as_deref().unwrap_or_default());
        let port = self.port.to_string();
        [&self.host, gpu, nccl, &self.no_nccl, &port, &self.address, &self.token].join("\n").into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Facts> {
        let text = String::from_utf8_lossy(bytes);
        let fields: Vec<&str> = text.split('\n').collect();
        let &[host, gpu, nccl, no_nccl, port, address, token] = fields.as_slice() else { return None };
        let given = |field: &str| (!field.is_empty()).then(|| field.to_string());
        Some(Facts {
            host: host.into(),
            gpu: given(gpu),
            nccl: given(nccl),
            no_nccl: no_nccl.into(),
            port: port.parse().ok()?,
            address: address.into(),
            token: token.into(),
        })
    }

    fn all(bytes: &[Vec<u8>]) -> Result<Vec<Facts>> {
        let read = |(rank, b): (usize, &Vec<u8>)| {
            let other =
                || refused(format!("rank {rank} is another build of this program: start the same one everywhere"));
            Facts::decode(b).ok_or_else(other)
        };
        bytes.iter().enumerate().map(read).collect()
    }
}

/// Bring the ranks together by MPI; a TCP connection to rank 0 then only tells who is alive.
fn over_mpi(ranks: &Ranks, device: &Device, which: Which, timeout: Duration, worker: Arc<Worker>) -> Result<Comm> {
    let mut facts = Facts::of(device)?;
    let door = if ranks.rank == 0 && ranks.size > 1 { Some(open_door(ranks)?) } else { None };
    if let Some(door) = &door {
        facts.port = door.port();
        facts.address = own_address();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        facts.token = format!("{}-{}", std::process::id(), now.as_nanos());
    }
    let all = Facts::all(&worker.exchange(&facts.encode())?)?;
    let alive = match (&door, all.first()) {
        (Some(door), Some(first)) => Alive::watch(Link::accept(door, ranks.size, &first.token, timeout)?, timeout)?,
        (None, Some(first)) if ranks.size > 1 => {
            let local = (first.host == facts.host).then(|| "127.0.0.1".to_string());
            let named = process_env("MASTER_ADDR");
            let hosts: Vec<String> =
                local.into_iter().chain(named).chain([first.host.clone(), first.address.clone()]).collect();
            let hosts: Vec<String> = hosts.into_iter().filter(|h| !h.is_empty()).collect();
            let me = (ranks.rank, ranks.size);
            Alive::watch(Link::reach(&hosts, first.port, me, &first.token, timeout)?, timeout)?
        }
        _ => Alive::alone(),
    };
    worker.watched_by(Arc::clone(&alive));
    match (choose(which, &all, true, several_per_gpu())?, device) {
        (Library::Nccl, Device::Cuda(c)) => {
            let ids = worker.exchange(&new_id(ranks)?)?;
            let id = ids.first().cloned().unwrap_or_default();
            let me = (ranks.rank, ranks.size);
            Ok(Comm::new(nccl::Ring::connect(me, c, &id, alive, timeout, Some(worker))?))
        }
        _ => Ok(Comm(worker)),
    }
}

/// Rank 0 listens where the environment says, if it does, else where there is room.
fn open_door(ranks: &Ranks) -> Result<Door> {
    match (process_env("MASTER_PORT"), ranks.meeting(&process_env)) {
        (Some(_), Ok((host, port))) => Door::open_at(&host, port),
        (Some(_), Err(e)) if process_env("MASTER_ADDR").is_some() => Err(e),
        _ => Door::open(),
    }
}

/// Bring the ranks together by TCP alone, at MASTER_ADDR and MASTER_PORT.
fn over_tcp(ranks: &Ranks, device: &Device, which: Which, timeout: Duration) -> Result<Comm> {
    let facts = Facts::of(device)?;
    let me = (ranks.rank, ranks.size);
    let mut link = match ranks.size {
        1 => None,
        size => {
            let (host, port) = ranks.meeting(&process_env)?;
            Some(match ranks.rank {
                0 => Link::accept(&Door::open_at(&host, port)?, size, "", timeout)?,
                _ => Link::reach(&[host], port, me, "", timeout)?,
            })
        }
    };
    let mut exchange = |mine: Vec<u8>| match &mut link {
        Some(link) => link.exchange(&mine),
        None => Ok(vec![mine]),
    };
    let all = Facts::all(&exchange(facts.encode())?)?;
    choose(which, &all, false, several_per_gpu())?;
    let ids = exchange(new_id(ranks)?)?;
    let alive = match link {
        Some(link) => Alive::watch(link, timeout)?,
        None => Alive::alone(),
    };
    let Device::Cuda(c) = device else { return Err(refused("NCCL needs a GPU")) };
    let id = ids.first().cloned().unwrap_or_default();
    Ok(Comm::new(nccl::Ring::connect(me, c, &id, alive, timeout, None)?))
}

/// Rank 0 makes the identity of NCCL's communicator.
fn new_id(ranks: &Ranks) -> Result<Vec<u8>> {
    if ranks.rank == 0 { nccl::unique_id() } else { Ok(Vec::new()) }
}

/// Whether NCCL was told that ranks may share a GPU.
fn several_per_gpu() -> bool {
    process_env("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|v| v == "1")
}

/// The address that this machine would use towards others. Nothing is sent.
fn own_address() -> String {
    let ask = || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?; // reserved for examples: nobody is there
        socket.local_addr()
    };
    ask().map_or_else(|_: std::io::Error| String::new(), |a| a.ip().to_string())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Library {
    Nccl,
    Mpi,
}

/// The library for ranks of which all is known; all ranks come to the same answer.
fn choose(which: Which, all: &[Facts], mpi: bool, several: bool) -> Result<Library> {
    let against = match against_nccl(all, which == Which::Nccl && several) {
        _ if which == Which::Mpi => return Ok(Library::Mpi),
        None => return Ok(Library::Nccl),
        Some(why) => why,
    };
    match (which, mpi) {
        (Which::Auto, true) => Ok(Library::Mpi),
        (Which::Auto, false) => Err(refused(format!(
            "{against}; and MPI did not start these ranks: start them with mpirun -np {} tweedie train …",
            all.len()
        ))),
        _ => Err(refused(against)),
    }
}

/// Why NCCL cannot connect these ranks.
fn against_nccl(all: &[Facts], several: bool) -> Option<String> {
    let without: Vec<usize> = (0..all.len()).filter(|r| all.get(*r).is_some_and(|f| f.gpu.is_none())).collect();
    if !without.is_empty() {
        return Some(format!("NCCL needs a GPU for each rank, and there is none for {}", named(&without)));
    }
    if let Some((rank, f)) = all.iter().enumerate().find(|(_, f)| f.nccl.is_none()) {
        return Some(format!("NCCL is missing at rank {rank}: {}", f.no_nccl));
    }
    let shared = all.iter().enumerate().find_map(|(rank, f)| {
        let before = all.iter().take(rank).position(|g| g.gpu == f.gpu)?;
        Some((before, rank, f))
    });
    let (a, b, f) = shared?;
    let version = f.nccl.as_deref().unwrap_or_default();
    let number = |i: usize| version.split('.').nth(i).and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    let new_enough = (number(0), number(1)) >= (2, 30);
    (!several || !new_enough).then(|| {
        format!(
            "there are more ranks than GPUs: ranks {a} and {b} share one of {}, and NCCL wants one for each. Start fewer ranks, use \
             --comm mpi under mpirun, or set NCCL_MULTI_RANK_GPU_ENABLE=1 and --comm nccl with NCCL 2.30 or newer (found {version})",
            f.host
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(id: &str, nccl: &str) -> Facts {
        Facts { host: "node".into(), gpu: Some(id.into()), nccl: Some(nccl.into()), ..Facts::default() }
    }

    fn cpu() -> Facts {
        Facts::default()
    }

    #[test]
    fn facts_travel_whole() {
        let mut facts = gpu("ab12", "2.27.5");
        (facts.port, facts.address, facts.token) = (4711, "10.0.0.1".into(), "9-9".into());
        for f in [facts, cpu()] {
            assert_eq!(Facts::all(&[f.encode()]).unwrap(), [f]);
        }
        let e = Facts::all(&[cpu().encode(), b"x".to_vec()]).unwrap_err().to_string();
        assert!(e.contains("rank 1 is another build"), "{e}");
    }

    #[test]
    fn nccl_where_each_has_its_own_gpu_else_mpi() {
        let own = [gpu("a", "2.27.5"), gpu("b", "2.27.5")];
        let shared = [gpu("a", "2.30.1"), gpu("a", "2.30.1")];
        let mixed = [gpu("a", "2.27.5"), cpu()];
        let pick = |which, all: &[Facts], mpi, several| choose(which, all, mpi, several).map_err(|e| e.to_string());
        for mpi in [true, false] {
            assert_eq!(pick(Which::Auto, &own, mpi, false), Ok(Library::Nccl));
            assert_eq!(pick(Which::Nccl, &own, mpi, false), Ok(Library::Nccl));
        }
        assert_eq!(pick(Which::Mpi, &own, true, false), Ok(Library::Mpi));
        for all in [&shared, &mixed] {
            assert_eq!(pick(Which::Auto, all, true, true), Ok(Library::Mpi));
        }
        assert!(pick(Which::Auto, &shared, false, false).unwrap_err().contains("more ranks than GPUs: ranks 0 and 1"));
        assert!(pick(Which::Auto, &shared, false, false).unwrap_err().contains("mpirun -np 2"));
        assert_eq!(pick(Which::Nccl, &shared, true, true), Ok(Library::Nccl));
        assert!(pick(Which::Nccl, &shared, true, false).unwrap_err().contains("NCCL_MULTI_RANK_GPU_ENABLE=1"));
        let old = [gpu("a", "2.27.5"), gpu("a", "2.27.5")];
        assert!(pick(Which::Nccl, &old, true, true).unwrap_err().contains("found 2.27.5"));
        assert!(pick(Which::Nccl, &mixed, true, false).unwrap_err().contains("there is none for rank 1"));
        let missing = [gpu("a", "2.27.5"), Facts { nccl: None, no_nccl: "not found".into(), ..gpu("b", "") }];
        assert!(pick(Which::Nccl, &missing, true, false).unwrap_err().contains("NCCL is missing at rank 1: not found"));
    }
}
