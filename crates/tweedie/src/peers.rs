//! The ranks that train one model together, as the library sees them: alone, or one of several over a [`Comm`].

use serde::Serialize;
use serde::de::DeserializeOwned;
use tweedie_engine::comm::Comm;

use crate::error::{DataError, Error, Result};

/// One process of a training, and a way to the others if there are any. Every rank makes the same calls in the same order.
///
/// ```
/// use tweedie::peers::Peers;
/// use tweedie::{Error, comm};
///
/// let ranks: Vec<_> = comm::threads(2).into_iter().map(|c| std::thread::spawn(move || {
///     let peers = Peers::new(c);
///     let mine = if peers.rank() == 1 { Err(Error::Input("no data".into())) } else { Ok(()) };
///     (peers.tell(&peers.rank()).unwrap(), peers.agree(mine).unwrap_err().to_string())
/// })).collect();
/// for rank in ranks {
///     assert_eq!(rank.join().unwrap(), (vec![0, 1], "rank 1: no data".to_string()));
/// }
/// assert_eq!(Peers::default().agree(Ok(7))?, 7); // alone
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Peers(Option<Comm>);

impl Peers {
    /// One of several.
    pub fn new(comm: Comm) -> Peers {
        Peers(Some(comm))
    }

    /// The way to the others, if this is one of a group.
    pub fn comm(&self) -> Option<&Comm> {
        self.0.as_ref()
    }

    /// The number of this one, from 0.
    pub fn rank(&self) -> usize {
        self.0.as_ref().map_or(0, Comm::rank)
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(1, Comm::size)
    }

    /// Whether this one writes files and tells what happens.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Whether there are others.
    pub fn are_several(&self) -> bool {
        self.size() > 1
    }

    /// The group, if there are others.
    fn others(&self) -> Option<&Comm> {
        self.0.as_ref().filter(|c| c.size() > 1)
    }

    /// Bytes of each rank, by rank.
    pub fn exchange(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        match self.others() {
            None => Ok(vec![mine]),
            Some(comm) => Ok(comm.exchange(&mine)?),
        }
    }

    /// An error if a sum or copy that was begun has failed since; after the device has been waited for, what it holds is right where this is.
    pub fn check(&self) -> Result<()> {
        Ok(self.others().map_or(Ok(()), Comm::check)?)
    }

    /// Something of each rank, by rank. Numbers with a fraction may lose their last digit on the way.
    pub fn tell<T: Serialize + DeserializeOwned + Clone>(&self, mine: &T) -> Result<Vec<T>> {
        if self.others().is_none() {
            return Ok(vec![mine.clone()]);
        }
        let bytes = serde_json::to_vec(mine).map_err(|e| Error::Input(format!("a message between ranks: {e}")))?;
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            serde_json::from_slice(&bytes).map_err(|e| Error::Input(format!("a message of rank {rank}: {e}")))
        };
        self.exchange(bytes)?.into_iter().enumerate().map(read).collect()
    }

    /// `mine` where it went well at every rank; otherwise the error of the first rank at which it did not, at all of them.
    pub fn agree<T>(&self, mine: Result<T>) -> Result<T> {
        if self.others().is_none() || matches!(mine, Err(Error::Rank { .. })) {
            return mine;
        }
        let wrong = mine.as_ref().err().map(|e| (e.to_string(), is_fatal(e)));
        let all = self.tell(&wrong)?;
        match all.into_iter().enumerate().find_map(|(rank, e)| Some((rank, e?))) {
            Some((rank, (message, fatal))) => Err(Error::Rank { rank, message, fatal }),
            None => mine,
        }
    }

    /// Whether any rank wants to stop, and whether the first one says that something is due.
    pub fn vote(&self, stop: bool, due: bool) -> Result<(bool, bool)> {
        if self.others().is_none() {
            return Ok((stop, due));
        }
        let all = self.exchange(vec![u8::from(stop), u8::from(due)])?;
        let says = |votes: &Vec<u8>, i: usize| votes.get(i) == Some(&1);
        Ok((all.iter().any(|v| says(v, 0)), all.first().is_some_and(|v| says(v, 1))))
    }

    /// An error that names the first rank, and the first of its `facts` (name and value), that differ from those of rank 0.
    pub fn check_same(&self, facts: &[(String, String)]) -> Result<()> {
        let all = self.tell(&facts.to_vec())?;
        let Some((first, others)) = all.split_first() else { return Ok(()) };
        for (rank, theirs) in others.iter().enumerate() {
            let rank = rank + 1;
            let differs = first.iter().zip(theirs).find(|(a, b)| a != b);
            let what = match differs {
                Some(((name, a), (other, b))) if name == other => format!("{name} = {b}, rank 0 has {a}"),
                Some(((name, _), (other, _))) => format!("a setting {other} where rank 0 has {name}"),
                None if first.len() != theirs.len() => format!("{} settings, rank 0 {}", theirs.len(), first.len()),
                None => continue,
            };
            let message = format!("it has {what}; start all ranks with the same program, recipe and data");
            return Err(Error::Rank { rank, message, fatal: true });
        }
        Ok(())
    }
}

/// Whether an error ends a run even where only an evaluation failed.
fn is_fatal(e: &Error) -> bool {
    match e {
        Error::Data(e) => DataError::is_corrupt(e),
        Error::File { .. } | Error::Input(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie_engine::comm::threads;

    fn each<R: Send + 'static>(n: usize, f: impl Fn(Peers) -> R + Send + Clone + 'static) -> Vec<R> {
        let spawn = |c| {
            let f = f.clone();
            std::thread::spawn(move || f(Peers::new(c)))
        };
        let running: Vec<_> = threads(n).into_iter().map(spawn).collect();
        running.into_iter().map(|t| t.join().unwrap()).collect()
    }

    #[test]
    fn the_rank_and_setting_that_differ_are_named() {
        let facts = |lr: &str| vec![("train.batch".to_string(), "8".to_string()), ("train.lr".into(), lr.into())];
        let same = each(3, move |p| p.check_same(&facts("1")).is_ok());
        assert_eq!(same, [true; 3]);
        for message in
            each(3, move |p| p.check_same(&facts(if p.rank() == 2 { "2" } else { "1" })).unwrap_err().to_string())
        {
            assert!(message.starts_with("rank 2: it has train.lr = 2, rank 0 has 1"), "{message}");
        }
    }

    #[test]
    fn one_vote_stops_all_and_the_first_says_what_is_due() {
        let votes = each(3, |p| {
            let one = p.vote(p.rank() == 2, p.rank() == 0).unwrap();
            (one, p.vote(false, p.rank() == 1).unwrap())
        });
        assert_eq!(votes, [((true, true), (false, false)); 3]);
    }
}
