//! Ranks meet over TCP: rank 0 listens, the others come to it. What they need to begin is exchanged here; then the same connections
//! carry the heartbeat.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::refused;
use super::wire::{Message, Wire};
use crate::error::{Error, Result};

/// How long one attempt to connect, or a greeting, may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Between attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Where rank 0 waits for the others.
pub(super) struct Door {
    listener: TcpListener,
    name: String,
}

impl Door {
    /// Listen at the address that the environment names.
    pub fn open_at(host: &str, port: u16) -> Result<Door> {
        let name = format!("{host}:{port}");
        let first = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next());
        // A name of this machine's in a cluster need not be an address that it can bind to; loopback stays inside.
        let ip = match first.map(|a| a.ip()) {
            Some(ip) if ip.is_loopback() => ip,
            Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let listener = TcpListener::bind((ip, port)).map_err(|e| {
            let why = match e.kind() {
                ErrorKind::AddrInUse => "the port is in use, perhaps by another job: set MASTER_PORT to another".into(),
                _ => e.to_string(),
            };
            refused(format!("rank 0 cannot listen at {name}: {why}"))
        })?;
        Ok(Door { listener, name })
    }

    /// Listen at any free port of this machine.
    pub fn open() -> Result<Door> {
        Door::open_at("0.0.0.0", 0)
    }

    /// The port it listens at.
    pub fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |a| a.port())
    }
}

/// The connections of one rank: rank 0 has one to each other rank, by rank; the others have one to rank 0.
pub(super) struct Link {
    pub rank: usize,
    pub size: usize,
    pub wires: Vec<(usize, Wire)>,
    timeout: Duration,
}

impl Link {
    /// Rank 0: wait for the others. Those that do not come in time are named, to those that did too.
    pub fn accept(door: &Door, size: usize, token: &str, timeout: Duration) -> Result<Link> {
        let mut link = Link { rank: 0, size, wires: Vec::new(), timeout };
        let failed = |e: std::io::Error| refused(format!("rank 0 cannot listen at {}: {e}", door.name));
        door.listener.set_nonblocking(true).map_err(failed)?;
        let until = Instant::now() + timeout;
        while link.wires.len() + 1 < size {
            match door.listener.accept() {
                Ok((stream, _)) => link.greet(stream, token)?,
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                Err(e) => return Err(failed(e)),
            }
            if Instant::now() >= until && link.wires.len() + 1 < size {
                return Err(link.missing(timeout));
            }
        }
        link.wires.sort_by_key(|(rank, _)| *rank);
        Ok(link)
    }

    /// Take a connection in if it is one of ours. Anything may knock at an open port; only a rank that contradicts is an error.
    fn greet(&mut self, stream: TcpStream, token: &str) -> Result<()> {
        let Ok(mut wire) = Wire::new(stream) else { return Ok(()) };
        let Ok(Some(Message::Hello { token: theirs, rank, size })) = wire.receive(ATTEMPT) else { return Ok(()) };
        if theirs != token {
            return Ok(());
        }
        let why = if size != self.size {
            format!("rank {rank} was told of {size} ranks, rank 0 of {}: start all with the same number", self.size)
        } else if rank == 0 || rank >= size || self.wires.iter().any(|(r, _)| *r == rank) {
            format!("two processes say that they are rank {rank}: each needs a number of its own below {size}")
        } else {
            self.wires.push((rank, wire));
            return Ok(());
        };
        self.wires.push((rank, wire));
        self.tell_lost(rank, &why);
        Err(refused(why))
    }

    fn missing(&mut self, timeout: Duration) -> Error {
        let here: Vec<usize> = self.wires.iter().map(|(r, _)| *r).collect();
        let missing: Vec<usize> = (1..self.size).filter(|r| !here.contains(r)).collect();
        let why = format!("{} of {} did not arrive within {} s", named(&missing), self.size, timeout.as_secs_f32());
        self.tell_lost(missing.first().copied().unwrap_or(0), &why);
        refused(format!("{why}: started too late, not at all, or unable to reach rank 0"))
    }

    fn tell_lost(&mut self, rank: usize, why: &str) {
        for (_, wire) in &mut self.wires {
            let _ = wire.send(&Message::Lost { rank, why: why.into() });
        }
    }

    /// Another rank: come to rank 0, which may not be there yet, at the first of `hosts` that answers.
    pub fn reach(hosts: &[String], port: u16, me: (usize, usize), token: &str, timeout: Duration) -> Result<Link> {
        let (rank, size) = me;
        let until = Instant::now() + timeout;
        let hello = Message::Hello { token: token.into(), rank, size };
        loop {
            let mut why = String::from("no address");
            for host in hosts {
                match knock(host, port, &hello) {
                    Ok(wire) => return Ok(Link { rank, size, wires: vec![(0, wire)], timeout }),
                    Err(e) => why = format!("{host}:{port}: {e}"),
                }
            }
            if Instant::now() >= until {
                let secs = timeout.as_secs_f32();
                return Err(refused(format!(
                    "rank {rank} of {size} cannot reach rank 0 within {secs} s ({why}): is it started, and is MASTER_ADDR its machine?"
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The bytes of each rank, by rank: gathered at rank 0 and sent to all.
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (rank, timeout) = (self.rank, self.timeout);
        if rank > 0 {
            let Some((_, wire)) = self.wires.first_mut() else { return Ok(vec![mine.to_vec()]) };
            let lost = |e: std::io::Error| refused(format!("rank {rank} has lost rank 0 while the ranks met: {e}"));
            wire.send(&Message::Data(vec![mine.to_vec()])).map_err(lost)?;
            return expect_data(wire, 0, timeout);
        }
        let mut all = vec![mine.to_vec()];
        for i in 0..self.wires.len() {
            let Some((peer, wire)) = self.wires.get_mut(i) else { continue };
            let (peer, got) = (*peer, expect_data(wire, *peer, timeout));
            match got {
                Ok(mut data) => all.push(data.pop().unwrap_or_default()),
                Err(e) => {
                    self.tell_lost(peer, &e.to_string());
                    return Err(e);
                }
            }
        }
        for (peer, wire) in &mut self.wires {
            let sent = wire.send(&Message::Data(all.clone()));
            sent.map_err(|e| refused(format!("rank 0 has lost rank {peer} while the ranks met: {e}")))?;
        }
        Ok(all)
    }
}

fn expect_data(wire: &mut Wire, peer: usize, timeout: Duration) -> Result<Vec<Vec<u8>>> {
    let why = match wire.receive(timeout) {
        Ok(Some(Message::Data(all))) => return Ok(all),
        Ok(Some(Message::Lost { why, .. })) => return Err(refused(why)),
        Ok(Some(_)) => "it sent something else than was agreed".to_string(),
        Ok(None) => format!("no word for {} s", timeout.as_secs_f32()),
        Err(e) => format!("its connection ended ({e}); its own message says why"),
    };
    Err(refused(format!("rank {peer} was lost while the ranks met: {why}")))
}

fn knock(host: &str, port: u16, hello: &Message) -> std::io::Result<Wire> {
    let mut last = std::io::Error::from(ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ATTEMPT) {
            Ok(stream) => {
                let mut wire = Wire::new(stream)?;
                wire.send(hello)?;
                return Ok(wire);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// "rank 1", "ranks 1, 2 and 5".
pub(super) fn named(ranks: &[usize]) -> String {
    let all: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match all.as_slice() {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [most @ .., last] => format!("ranks {} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn local() -> (Door, Vec<String>) {
        (Door::open_at("127.0.0.1", 0).unwrap(), vec!["127.0.0.1".into()])
    }

    #[test]
    fn ranks_meet_and_exchange_by_rank_whatever_the_order_of_arrival() {
        let (door, hosts) = local();
        let port = door.port();
        let others: Vec<_> = [3, 1, 2]
            .map(|rank| {
                let hosts = hosts.clone();
                std::thread::spawn(move || {
                    let mut link = Link::reach(&hosts, port, (rank, 4), "t", SOON).unwrap();
                    link.exchange(&[rank as u8; 3][..rank]).unwrap()
                })
            })
            .into();
        // Somebody else at the door is passed over.
        let _stranger = TcpStream::connect(("127.0.0.1", port)).map(|mut s| {
            use std::io::Write;
            let _ = s.write_all(b"GET / HTTP/1.1\r\n\r\n");
        });
        let mut link = Link::accept(&door, 4, "t", SOON).unwrap();
        let all = link.exchange(b"zero").unwrap();
        assert_eq!(all, [b"zero".to_vec(), vec![1], vec![2, 2], vec![3, 3, 3]]);
        others.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), all));
    }

    #[test]
    fn one_that_does_not_come_is_named_to_all() {
        let (door, hosts) = local();
        let port = door.port();
        let other = std::thread::spawn(move || {
            Link::reach(&hosts, port, (1, 4), "", SOON).unwrap().exchange(b"").unwrap_err().to_string()
        });
        let e = Link::accept(&door, 4, "", Duration::from_millis(700)).err().unwrap().to_string();
        for text in [e, other.join().unwrap()] {
            assert!(text.contains("ranks 2 and 3 of 4 did not arrive"), "{text}");
        }
    }

    #[test]
    fn a_port_in_use_and_an_absent_rank_0_are_told() {
        let (door, hosts) = local();
        let port = door.port();
        let e = Door::open_at("127.0.0.1", port).err().unwrap().to_string();
        assert!(e.contains(&format!("127.0.0.1:{port}: the port is in use")) && e.contains("MASTER_PORT"), "{e}");
        drop(door);
        let e = Link::reach(&hosts, port, (1, 2), "", Duration::from_millis(200)).err().unwrap().to_string();
        assert!(e.contains("rank 1 of 2 cannot reach rank 0") && e.contains("MASTER_ADDR"), "{e}");
    }

    #[test]
    fn two_of_one_number_and_two_sizes_are_refused() {
        for (first, second, words) in
            [((1, 3), (1, 3), "two processes say that they are rank 1"), ((1, 3), (2, 4), "of 4")]
        {
            let (door, hosts) = local();
            let port = door.port();
            let wires = [first, second].map(|me| Link::reach(&hosts, port, me, "", SOON).unwrap());
            let e = Link::accept(&door, 3, "", SOON).err().unwrap().to_string();
            assert!(e.contains(words), "{e}");
            drop(wires);
        }
    }
}
