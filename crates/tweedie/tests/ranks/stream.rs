//! What is truly asked of a source that is streamed.

use super::{noise, sets};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tweedie::augment::{AugmentConfig, Transform};
use tweedie::data::{
    self, ImageSource, Item, Loader, LoaderConfig, Locality, OnCorrupt, OpenOptions, Part, Position, Source,
};

/// 480 images in 48 blocks, six in a file, of which 24 may be in use; notes what is asked for.
struct Watched {
    images: Source,
    got: Mutex<Vec<u32>>,
    ahead: Mutex<Vec<u32>>,
}

impl ImageSource for Watched {
    fn len(&self) -> usize {
        480
    }
    fn get(&self, i: usize) -> data::Result<Item> {
        self.got.lock().unwrap().push(i as u32);
        self.images.get(i)
    }
    fn label(&self, i: usize) -> u32 {
        self.images.label(i)
    }
    fn locality(&self) -> Option<Locality> {
        let starts: Vec<u32> = (0..48).map(|b| b * 10).collect();
        Some(Locality { files: starts.iter().copied().step_by(6).collect(), starts, window: 24 })
    }
    fn read_ahead(&self, examples: &[u32]) {
        self.ahead.lock().unwrap().extend(examples);
    }
}

fn plain() -> Transform {
    Transform::eval(&AugmentConfig::none(), 8, 3).unwrap()
}

/// What rank `rank` of `ranks` asks for from `batch` on to the end of the first epoch: one by one, and ahead.
fn asked(rank: usize, ranks: usize, batch: u32) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let source = Arc::new(Watched { images: noise(480), got: Mutex::default(), ahead: Mutex::default() });
    let config = LoaderConfig {
        part: Part { rank, ranks },
        start: Position { epoch: 0, batch },
        epochs: Some(1),
        threads: 2,
        ..LoaderConfig::train(48, 3)
    };
    let mut loader = Loader::new(source.clone(), plain(), config).unwrap();
    assert_eq!(loader.by_ref().map(Result::unwrap).count(), 10 - batch as usize);
    drop(loader); // waits for its threads
    let (got, ahead) = (source.got.lock().unwrap(), source.ahead.lock().unwrap());
    let (got, ahead) = (got.clone(), ahead.clone());
    let sets = (got.iter().copied().collect::<BTreeSet<_>>(), ahead.iter().copied().collect::<BTreeSet<_>>());
    assert_eq!((sets.0.len(), sets.1.len()), (got.len(), ahead.len()), "nothing is asked for twice");
    sets
}

#[test]
fn ranks_ask_for_different_examples() {
    for ranks in [1, 2, 3, 8] {
        let (mut got, mut ahead) = (BTreeSet::new(), BTreeSet::new());
        for rank in 0..ranks {
            let (own, own_ahead) = asked(rank, ranks, 0);
            assert_eq!(own.len(), 480 / ranks);
            assert!(own_ahead.is_subset(&own), "read ahead is what is needed");
            assert!(got.is_disjoint(&own) && ahead.is_disjoint(&own_ahead));
            got.extend(own);
            ahead.extend(own_ahead);
        }
        assert_eq!(got.len(), 480);
    }
}

/// A run that goes on in the middle of an epoch asks for the examples that are left, and reads ahead no more than what is left and the
/// windows that it stands in.
#[test]
fn resuming_reads_no_more_than_the_blocks_in_progress() {
    let (all, _) = asked(0, 1, 0);
    for batch in [4, 7, 9] {
        let (left, ahead) = asked(0, 1, batch);
        assert_eq!(left.len(), 480 - 48 * batch as usize);
        assert!(left.is_subset(&all));
        // Windows are one block of each of the 24 lanes: five batches.
        let done = (batch as usize / 5) * 5 * 48;
        assert!(ahead.len() <= 480 - done + 24 * 10, "batch {batch}: {}", ahead.len());
    }
}

#[test]
fn a_half_written_shard_is_named_at_once() {
    for (file, cut) in [("train-001.tar", 3000), ("train-001.parquet", 3000)] {
        let dir = TempDir::new().unwrap();
        match file.ends_with("tar") {
            true => sets::tars(dir.path(), 3, 12, "cls"),
            false => sets::parquets(dir.path(), 3, 2, 12, true),
        }
        assert!(data::Dataset::open(dir.path()).is_ok());
        std::fs::File::options().write(true).open(dir.path().join(file)).unwrap().set_len(cut).unwrap();
        let e = data::Dataset::open(dir.path()).unwrap_err().to_string();
        assert!(e.contains(file), "{e}");
    }
}

/// A shard that is cut off while it is streamed: its images are replaced and counted, or end the run, and the file is named.
#[test]
fn a_shard_that_shrinks_does_not_block() {
    for on_corrupt in [OnCorrupt::Skip, OnCorrupt::Fail] {
        let dir = TempDir::new().unwrap();
        sets::tars(dir.path(), 6, 8, "cls");
        let options = OpenOptions { cache_bytes: 2000, decoded_bytes: 0, ..OpenOptions::default() };
        let source = data::open(dir.path(), &options).unwrap().train().unwrap().clone();
        std::fs::File::options().write(true).open(dir.path().join("train-004.tar")).unwrap().set_len(0).unwrap();
        let config = LoaderConfig { on_corrupt, epochs: Some(2), threads: 2, ..LoaderConfig::train(12, 3) };
        let mut loader = Loader::new(source, plain(), config).unwrap();
        match on_corrupt {
            OnCorrupt::Skip => {
                assert!(loader.by_ref().all(|b| b.unwrap().indices.len() == 12));
                let skipped = loader.skipped();
                assert!(skipped.count() > 3 && skipped.errors.values().all(|e| e.contains("train-004.tar")));
            }
            OnCorrupt::Fail => {
                let e = loader.find_map(Result::err).unwrap().to_string();
                assert!(e.contains("train-004.tar"), "{e}");
            }
        }
    }
}
