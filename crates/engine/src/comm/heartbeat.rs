//! Who is alive, beside the collectives: each rank tells rank 0 twice a second that it is there and how many operations it has begun,
//! rank 0 tells everyone. A connection that closes without a farewell is a death, known at once; silence is known after a while.
//! Nothing else travels here.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::refused;
use super::rendezvous::{Link, named};
use super::wire::{Message, Wire, send};
use crate::error::Result;

/// Between two signs of life.
const BEAT: Duration = Duration::from_millis(500);
const SHORTEST_SILENCE: Duration = Duration::from_secs(3);
const LONGEST_SILENCE: Duration = Duration::from_secs(20);

/// A rank that ended in order.
#[derive(Clone)]
struct Left {
    begun: u64,
    why: String,
}

#[derive(Default)]
struct State {
    /// The first that was lost, and how.
    lost: Option<String>,
    left: Vec<Option<Left>>,
}

/// What this rank knows of the others.
pub(super) struct Alive {
    rank: usize,
    /// Operations that each rank has begun.
    begun: Vec<AtomicU64>,
    state: Mutex<State>,
    /// Connections to write to, with the rank at their other end.
    peers: Mutex<Vec<(usize, TcpStream)>>,
    gone: AtomicBool,
}

impl Alive {
    /// A rank without others.
    pub fn alone() -> Arc<Alive> {
        Alive::with_peers(0, 1, Vec::new())
    }

    fn with_peers(rank: usize, size: usize, peers: Vec<(usize, TcpStream)>) -> Arc<Alive> {
        Arc::new(Alive {
            rank,
            begun: (0..size).map(|_| AtomicU64::new(0)).collect(),
            state: Mutex::new(State { lost: None, left: vec![None; size] }),
            peers: Mutex::new(peers),
            gone: AtomicBool::new(false),
        })
    }

    /// Begin to give and to watch for signs of life; a rank that is silent for a third of `timeout` (3 to 20 s) is lost.
    pub fn watch(link: Link, timeout: Duration) -> Result<Arc<Alive>> {
        let failed = |e: std::io::Error| refused(format!("the heartbeat cannot be started: {e}"));
        let silence = (timeout / 3).clamp(SHORTEST_SILENCE, LONGEST_SILENCE);
        let mut peers = Vec::new();
        for (peer, wire) in &link.wires {
            peers.push((*peer, wire.writer().map_err(failed)?));
        }
        let alive = Alive::with_peers(link.rank, link.size, peers);
        for (peer, wire) in link.wires {
            let known = Arc::clone(&alive);
            spawn(move || known.listen(peer, wire, silence)).map_err(failed)?;
        }
        let known = Arc::clone(&alive);
        spawn(move || known.beat()).map_err(failed)?;
        Ok(alive)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Count an operation; the number that all ranks know it by.
    pub fn begin(&self) -> u64 {
        self.begun.get(self.rank).map_or(0, |n| n.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Why operation `number` will never end, if that is known.
    pub fn trouble(&self, number: u64) -> Option<String> {
        let state = self.state();
        if let Some(why) = &state.lost {
            return Some(why.clone());
        }
        let left = state.left.iter().enumerate().filter_map(|(rank, l)| Some((rank, l.as_ref()?)));
        // One that failed says why, and nothing goes on without it; one that only ended early may have done so because of that one.
        let early = left.filter(|(_, l)| l.begun < number || !l.why.is_empty()).max_by_key(|(_, l)| !l.why.is_empty());
        early.map(|(rank, l)| match l.why.as_str() {
            "" => format!("rank {rank} has ended before the others; its own messages say why"),
            why => format!("rank {rank} has failed: {why}"),
        })
    }

    /// Who keeps operation `number` waiting.
    pub fn late(&self, number: u64) -> String {
        let behind = |n: &AtomicU64| n.load(Ordering::Relaxed) < number;
        let late: Vec<usize> = self.begun.iter().enumerate().filter(|(_, n)| behind(n)).map(|(rank, _)| rank).collect();
        match late.as_slice() {
            [] => "all ranks have begun it, so the network between them does not answer".into(),
            late => format!(
                "{} alive but not there yet: stuck, or much slower than the others (--comm-timeout waits longer)",
                if late.len() == 1 { format!("{} is", named(late)) } else { format!("{} are", named(late)) }
            ),
        }
    }

    /// Tell the others that this rank ends: in order, or because of `why`. Only the first call counts.
    pub fn leave(&self, why: &str) {
        if self.gone.swap(true, Ordering::Relaxed) {
            return;
        }
        let begun = self.begun.get(self.rank).map_or(0, |n| n.load(Ordering::Relaxed));
        self.tell(None, &Message::Left { rank: self.rank, begun, why: why.into() });
        for (_, stream) in self.peers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Send to all but `except`. One that cannot be written to is found by its reader.
    fn tell(&self, except: Option<usize>, message: &Message) {
        for (peer, stream) in self.peers.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if Some(*peer) != except {
                let _ = send(stream, message);
            }
        }
    }

    fn beat(&self) {
        while !self.gone.load(Ordering::Relaxed) && self.state().lost.is_none() {
            let counts = self.begun.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            self.tell(None, &Message::Beat(counts));
            std::thread::sleep(BEAT);
        }
    }

    /// Read what `peer` sends until it is gone.
    fn listen(&self, peer: usize, mut wire: Wire, silence: Duration) {
        // Silent turns are counted, not time: that in which this process was itself stopped is nobody else's silence.
        let turns = (silence.as_millis() / BEAT.as_millis()).max(1);
        let mut silent = 0;
        loop {
            match wire.receive(BEAT) {
                Ok(Some(message)) => {
                    silent = 0;
                    self.hear(peer, message);
                }
                Ok(None) if silent < turns => silent += 1,
                Ok(None) => {
                    let secs = silence.as_secs_f32();
                    return self.lose(
                        peer,
                        &format!("has not been heard of for {secs} s: it hangs, is stopped, or cannot be reached"),
                    );
                }
                Err(_) => return self.lose(peer, "is dead: its connection closed without a farewell"),
            }
            if self.state().left.get(peer).is_some_and(Option::is_some) {
                return;
            }
        }
    }

    fn hear(&self, peer: usize, message: Message) {
        match message {
            // Rank 0 tells of all, another of itself.
            Message::Beat(counts) => {
                for (rank, (mine, told)) in self.begun.iter().zip(counts).enumerate() {
                    if rank != self.rank && (peer == 0 || rank == peer) {
                        mine.fetch_max(told, Ordering::Relaxed);
                    }
                }
            }
            Message::Left { rank, begun, ref why } => {
                if let Some(place) = self.state().left.get_mut(rank) {
                    *place = Some(Left { begun, why: why.clone() });
                }
                self.pass_on(peer, &message);
            }
            Message::Lost { ref why, .. } => {
                self.state().lost.get_or_insert_with(|| why.clone());
                self.pass_on(peer, &message);
            }
            Message::Hello { .. } | Message::Data(_) => {}
        }
    }

    /// What one rank tells rank 0, the others hear from it.
    fn pass_on(&self, from: usize, message: &Message) {
        if self.rank == 0 {
            self.tell(Some(from), message);
        }
    }

    fn lose(&self, peer: usize, how: &str) {
        let why = format!("rank {peer} {how}");
        let first = {
            let mut state = self.state();
            let ended = state.left.get(peer).is_some_and(Option::is_some) || state.lost.is_some();
            if !ended {
                state.lost = Some(why.clone());
            }
            !ended
        };
        if first && !self.gone.load(Ordering::Relaxed) {
            self.pass_on(peer, &Message::Lost { rank: peer, why });
        }
    }
}

fn spawn(f: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("heartbeat".into()).spawn(f).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::rendezvous::Door;
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Links of `n` ranks of one process, by rank.
    fn links(n: usize) -> Vec<Link> {
        let door = Door::open_at("127.0.0.1", 0).unwrap();
        let hosts = vec!["127.0.0.1".to_string()];
        let others: Vec<Link> =
            (1..n).map(|rank| Link::reach(&hosts, door.port(), (rank, n), "", SOON).unwrap()).collect();
        std::iter::once(Link::accept(&door, n, "", SOON).unwrap()).chain(others).collect()
    }

    fn watch(link: Link) -> Arc<Alive> {
        Alive::watch(link, Duration::from_secs(1)).unwrap()
    }

    /// What `who` learns of operation `number` in time.
    fn learns(who: &Alive, number: u64) -> String {
        let start = Instant::now();
        while start.elapsed() < SOON {
            if let Some(why) = who.trouble(number) {
                return why;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("nothing was learnt");
    }

    #[test]
    fn a_dead_rank_is_named_to_everyone() {
        for dead in 0..3 {
            let mut all: Vec<Option<Link>> = links(3).into_iter().map(Some).collect();
            let ended = all[dead].take();
            let alive: Vec<Arc<Alive>> = all.into_iter().flatten().map(watch).collect();
            assert!(alive.iter().all(|a| a.trouble(1).is_none()));
            drop(ended);
            for a in alive {
                assert!(learns(&a, 1).starts_with(&format!("rank {dead} is dead")));
            }
        }
    }

    #[test]
    fn a_silent_rank_is_named_to_everyone() {
        let mut all = links(3);
        let silent = all.remove(1); // its connection stays open
        let alive: Vec<Arc<Alive>> = all.into_iter().map(watch).collect();
        for a in alive {
            let why = learns(&a, 1);
            assert!(why.starts_with("rank 1 has not been heard of for 3 s"), "{why}");
        }
        drop(silent);
    }

    #[test]
    fn who_ends_in_order_troubles_only_what_it_had_not_begun() {
        let alive: Vec<Arc<Alive>> = links(3).into_iter().map(watch).collect();
        for a in &alive {
            assert_eq!(a.begin(), 1);
        }
        alive[2].leave("");
        assert!(learns(&alive[1], 2).starts_with("rank 2 has ended before the others"));
        assert_eq!(alive[1].trouble(1), None, "what it had begun goes on");
        alive[1].leave("the data are gone");
        let start = Instant::now();
        while learns(&alive[0], 2) != "rank 1 has failed: the data are gone" {
            assert!(start.elapsed() < SOON, "{}", learns(&alive[0], 2));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn the_late_one_is_known_by_its_count() {
        let alive: Vec<Arc<Alive>> = links(3).into_iter().map(watch).collect();
        for a in &alive {
            a.begin();
        }
        assert_eq!(alive[0].begin(), 2);
        assert_eq!(alive[1].begin(), 2);
        for who in [0, 1] {
            let start = Instant::now();
            // Counts come with the next beat.
            while !alive[who].late(2).starts_with("rank 2 is alive")
                || !alive[who].late(1).starts_with("all ranks have")
            {
                assert!(start.elapsed() < SOON, "{} {}", alive[who].late(2), alive[who].late(1));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
