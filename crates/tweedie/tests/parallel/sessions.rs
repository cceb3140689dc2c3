//! Sessions of several ranks: one folder, checkpoints for any number of them, errors and stops that all see.

use std::cell::Cell;
use std::path::Path;

use tweedie::config::Optimizer;
use tweedie::data::{DataError, ImageSource};
use tweedie::session::Paused;
use tweedie::train::{Evaluation, Event, TrainingSet};
use tweedie::{Config, Dataset, Device, Error, Finished, Image, Session, checkpoint};

use crate::{Kind, ranks, state_of, with};

const CPU: Device = Device::Cpu;

/// What a rank saw of a whole session.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    evaluations: Vec<Evaluation>,
    state: Vec<Vec<f32>>,
    step: usize,
}

/// Train on, until `stop` at a step of this call.
fn go(mut session: Session, stop: Option<usize>) -> Seen {
    let asked = Cell::new(0);
    session = session.stop_when(move || {
        asked.set(asked.get() + 1);
        stop.is_some_and(|at| asked.get() >= at)
    });
    let mut evaluations = Vec::new();
    let Finished { step, .. } = session
        .train(|e| {
            if let Event::Eval(e) = e {
                evaluations.push(e.clone());
            }
        })
        .unwrap();
    Seen { evaluations, step, state: state_of(session.trainer()) }
}

fn create(n: usize, path: &Path, kind: Kind, c: &Config, stop: Option<usize>) -> Vec<Seen> {
    ranks(n, |comm| {
        let session = Session::create_with(path, c, kind.data(c), &CPU, Some(comm)).unwrap();
        go(session, stop)
    })
}

fn resume(n: usize, path: &Path, kind: Kind, stop: Option<usize>) -> Vec<Seen> {
    ranks(n, |comm| {
        let paused = Paused::open_with(path, &[], Some(comm)).unwrap();
        let data = match kind {
            Kind::Classes | Kind::MaskedClasses => kind.data(paused.config()),
            Kind::Captions => paused.open_data().unwrap(),
            Kind::Text | Kind::MaskedText => {
                TrainingSet::sequences(crate::lines(), paused.config(), Some(&paused.tokenizer_path())).unwrap()
            }
        };
        go(paused.resume(data, &CPU).unwrap(), stop)
    })
}

/// Evaluations of weights that are the same bit for bit are the same, however many ranks share the work.
#[test]
fn evaluations_are_those_of_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [Kind::Classes, Kind::Captions, Kind::Text] {
        let mut c = with(kind.config(), Optimizer::Adamw, true, 6);
        (c.train.epochs, c.train.eval_every) = (1, 1);
        let seen = |n: usize| create(n, &dir.path().join(format!("{kind:?}-{n}")), kind, &c, None);
        let (one, three) = (seen(1), seen(3));
        assert_eq!(one[0], three[0], "{kind:?}");
        assert_eq!(one[0].evaluations.len(), 1);
        assert!(three[1].evaluations.is_empty(), "only the first rank tells");
    }
}

/// Stopped with 3 ranks, gone on with by 1 or 2, and again by 3: the end is that of one rank without a stop.
#[test]
fn checkpoints_do_not_depend_on_the_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, optimizer, sharded) in [
        (Kind::Classes, Optimizer::Adamw, true),
        (Kind::Text, Optimizer::Muon, true),
        (Kind::Captions, Optimizer::Muon, false),
    ] {
        let c = with(kind.config(), optimizer, sharded, 6);
        let at = |name: &str| dir.path().join(format!("{kind:?}-{name}"));
        let whole = create(1, &at("whole"), kind, &c, None);
        create(3, &at("parts"), kind, &c, Some(2));
        assert_eq!(resume(1, &at("parts"), kind, Some(3))[0].step, 5);
        assert_eq!(resume(2, &at("parts"), kind, Some(2))[1].step, 7);
        let end = resume(3, &at("parts"), kind, None);
        assert!(end.iter().all(|r| r.state == whole[0].state), "{kind:?}");
        let last = |name: &str| checkpoint::load(&at(name).join("checkpoints/step-00000010")).unwrap();
        let (a, b) = (last("whole"), last("parts"));
        let values = |all: &[tweedie::tensors::NamedTensor]| all.iter().map(|t| t.data.to_vec()).collect::<Vec<_>>();
        assert_eq!((values(&a.model), values(&a.optimizer)), (values(&b.model), values(&b.optimizer)), "{kind:?}");
    }
}

#[test]
fn another_number_of_shards_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let c = with(Kind::Classes.config(), Optimizer::Adamw, false, 4);
    create(2, &run, Kind::Classes, &c, Some(1));
    for message in ranks(2, |comm| {
        let paused = Paused::open_with(&run, &["train.shards=2".into()], Some(comm)).unwrap();
        paused.resume(crate::stripes(), &CPU).err().unwrap().to_string()
    }) {
        assert!(message.contains("another number of shards than before"), "{message}");
    }
    assert_eq!(resume(1, &run, Kind::Classes, None)[0].step, 10, "the run is not spoilt");
}

#[test]
fn other_settings_of_a_rank_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for message in ranks(3, |comm| {
        let c = Kind::Classes.config().with("train.clip", if comm.rank() == 2 { 1.5 } else { 1.0 }).unwrap();
        let path = dir.path().join("run");
        Session::create_with(path, &c, crate::stripes(), &CPU, Some(comm)).err().unwrap().to_string()
    }) {
        assert!(message.starts_with("rank 2: it has train.clip = 1.5, rank 0 has 1"), "{message}");
    }
    assert!(!dir.path().join("run").exists(), "nothing was written");
}

#[test]
fn a_stop_of_one_rank_stops_all() {
    let dir = tempfile::tempdir().unwrap();
    let c = with(Kind::Classes.config(), Optimizer::Adamw, true, 0);
    let steps = ranks(3, |comm| {
        let stop = (comm.rank() == 1).then_some(3);
        let path = dir.path().join("run");
        go(Session::create_with(path, &c, crate::stripes(), &CPU, Some(comm)).unwrap(), stop).step
    });
    assert_eq!(steps, [3; 3]);
}

/// Images of which one cannot be read.
struct Torn(Option<usize>);

impl ImageSource for Torn {
    fn len(&self) -> usize {
        60
    }

    fn get(&self, i: usize) -> Result<tweedie::data::Item, DataError> {
        if self.0 == Some(i) {
            return Err(DataError::Corrupt { place: format!("image {i}"), message: "torn".into() });
        }
        Ok(tweedie::data::Item { image: Image::filled(8, 8, &[9]), label: (i % 5) as u32 })
    }

    fn label(&self, i: usize) -> u32 {
        (i % 5) as u32
    }
}

/// Every rank sees all images, but one of them has a bad disk: it says so, what was done is saved, and nobody waits.
#[test]
fn an_error_of_one_rank_ends_all() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let c = Kind::Classes.config().with("data.corrupt", "fail").unwrap();
    let set = |torn: Option<usize>| {
        let names: Vec<String> = (0..5).map(|c| c.to_string()).collect();
        Dataset::classes("torn", names).train(Torn(torn)).validation(Torn(None)).build().unwrap()
    };
    let errors = ranks(3, |comm| {
        let data = set((comm.rank() == 1).then_some(31));
        let session = Session::create_with(&run, &c, data, &CPU, Some(comm)).unwrap();
        session.run(|_| {}).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|e| e.starts_with("rank 1: ") && e.contains("image 31")), "{errors:?}");
}

/// A rank that ends without a word is named by those that wait for it.
#[test]
fn a_rank_that_ends_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let c = Kind::Classes.config();
    let ends = ranks(3, |comm| {
        let path = dir.path().join("run");
        let rank = comm.rank();
        let session = Session::create_with(path, &c, crate::stripes(), &CPU, Some(comm)).unwrap();
        if rank == 2 {
            return String::new();
        }
        match session.run(|_| {}) {
            Err(e @ Error::Engine(_)) => e.to_string(),
            other => format!("{other:?}"),
        }
    });
    assert!(ends[..2].iter().all(|e| e.contains("rank 2 has ended")), "{ends:?}");
}
