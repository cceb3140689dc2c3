//! The same run by 1, 2, 3 and 4 ranks.

use tweedie::config::Optimizer;
use tweedie::train::Trainer;
use tweedie::{Device, comm};

use crate::{KINDS, Kind, LOSS, WAY, alone, difference, ranks, start, together, with};

#[test]
fn ranks_train_the_run_of_one() {
    for kind in KINDS {
        for optimizer in [Optimizer::Adamw, Optimizer::Muon] {
            let one = with(kind.config(), optimizer, false, 0);
            let (want, start) = (alone(kind, &one), start(kind, &one));
            for (n, sharded) in [(1, false), (2, true), (3, false), (3, true)] {
                let c = with(kind.config(), optimizer, sharded, 0);
                let all = together(n, kind, &c);
                assert!(all.iter().all(|r| *r == all[0]), "{kind:?} {optimizer:?} {n}: ranks differ from each other");
                let (loss, way) = difference(&want, &all[0], &start);
                assert!(loss < LOSS && way < WAY, "{kind:?} {optimizer:?} {n} ranks, sharded {sharded}: {loss} {way}");
            }
        }
    }
}

#[test]
fn a_batch_in_parts_is_summed_in_the_last_of_them() {
    let kind = Kind::Text;
    let c = kind.config().with("train.accumulate", 2).unwrap();
    let (want, start) = (alone(kind, &c), start(kind, &c));
    let (loss, way) = difference(&want, &together(3, kind, &c)[0], &start);
    assert!(loss < LOSS && way < WAY, "{loss} {way}");
}

#[test]
fn shards_make_it_bit_for_bit() {
    for kind in KINDS {
        for optimizer in [Optimizer::Adamw, Optimizer::Muon] {
            let want = alone(kind, &with(kind.config(), optimizer, false, 4));
            for (n, sharded) in [(1, false), (2, false), (2, true), (4, true)] {
                let all = together(n, kind, &with(kind.config(), optimizer, sharded, 4));
                assert!(all.iter().all(|r| *r == want), "{kind:?} {optimizer:?} {n} ranks, sharded {sharded}");
            }
            let other = alone(kind, &with(kind.config(), optimizer, false, 6));
            assert_ne!(other.state, want.state, "sums of other parts are rounded otherwise");
        }
    }
}

#[test]
fn buckets_of_any_size_give_the_same_sum() {
    // Two buckets of a MB at the least, where the encoder is wide enough.
    let mut c = Kind::Classes.config();
    (c.model.encoder.width, c.model.encoder.heads, c.train.bucket_mb) = (192, 4, 1);
    let small = together(2, Kind::Classes, &c);
    c.train.bucket_mb = 1000;
    assert_eq!(small, together(2, Kind::Classes, &c));
}

#[test]
fn a_rank_keeps_a_share_of_the_state() {
    let c = with(Kind::Classes.config(), Optimizer::Muon, true, 0);
    let kept = ranks(3, |comm| {
        let t = Trainer::new(&c, Kind::Classes.data(&c), &Device::Cpu).unwrap().with_comm(comm).unwrap();
        t.optimizer().state_bytes()
    });
    let (all, sum) = (kept[0].1, kept.iter().map(|k| k.0).sum::<usize>());
    assert!(kept.iter().all(|k| k.0 < all * 55 / 100) && sum < all * 11 / 10, "{kept:?}");
}

#[test]
fn ranks_that_do_not_divide_are_refused() {
    let refused = |n: usize, c: &tweedie::Config| {
        let comm = comm::threads(n).remove(0);
        let t = Trainer::new(c, Kind::Classes.data(c), &Device::Cpu).unwrap();
        t.with_comm(comm).err().unwrap().to_string()
    };
    let c = with(Kind::Classes.config(), Optimizer::Adamw, false, 4);
    assert!(refused(3, &c).contains("train.shards = 4 is not a multiple of the 3 ranks"));
    let c = Kind::Classes.config().with("train.batch", 2).unwrap();
    assert!(refused(3, &c).contains("train.batch = 2 is less than 3 ranks"));
}
