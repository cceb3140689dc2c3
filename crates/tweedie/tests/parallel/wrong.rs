//! What the comparison with one rank would miss if it were blind: each of these is wrong, and must be seen.

use tweedie::Device;
use tweedie::config::{Method, Optimizer};
use tweedie::data::{Batch, Task};
use tweedie::train::Trainer;

use crate::{KINDS, Kind, LOSS, WAY, alone, difference, ranks, start, steps, with};

/// Two ranks whose batches `spoil` changes are not the run of one, by far more than the tolerances.
fn is_noticed(name: &str, spoil: impl Fn(&Trainer, &mut Batch) + Sync, of: impl Fn(Kind) -> bool) {
    for kind in KINDS.into_iter().filter(|k| of(*k)) {
        let c = with(kind.config(), Optimizer::Adamw, false, 0);
        let (want, start) = (alone(kind, &c), start(kind, &c));
        let all = ranks(2, |comm| steps(kind, &c, Some(comm), &spoil));
        let (loss, way) = difference(&want, &all[0], &start);
        assert!(loss > 10.0 * LOSS && way > 10.0 * WAY, "{name}, {kind:?}: {loss} {way}");
    }
}

#[test]
fn rows_of_another_rank_are_noticed() {
    let spoil = |t: &Trainer, batch: &mut Batch| {
        if t.peers().rank() == 1 {
            // Its rows are those of the first rank, at its own addresses.
            let alone = Trainer::new(&t.config, kind_of(t).data(&t.config), &Device::Cpu).unwrap();
            let whole = alone.loader().unwrap().nth(t.step()).unwrap().unwrap();
            let (rows, all) = (batch.indices.len(), whole.indices.len());
            let of = |v: &[u32]| v[..v.len() / all * rows].to_vec();
            batch.images = whole.images[..whole.images.len() / all * rows].to_vec();
            (batch.labels, batch.tokens, batch.partner_labels) =
                (of(&whole.labels), of(&whole.tokens), of(&whole.partner_labels));
        }
    };
    is_noticed("rows", spoil, |_| true);
}

fn kind_of(t: &Trainer) -> Kind {
    match (t.config.data.task, t.config.model.method) {
        (Task::Class, Method::Tdd) => Kind::Classes,
        (Task::Class, Method::Mdd) => Kind::MaskedClasses,
        (Task::Caption, _) => Kind::Captions,
        (Task::Text, Method::Tdd) => Kind::Text,
        (Task::Text, Method::Mdd) => Kind::MaskedText,
    }
}

#[test]
fn rows_that_nobody_computes_are_noticed() {
    let spoil = |t: &Trainer, batch: &mut Batch| {
        if t.peers().rank() == 1 {
            let half = batch.indices.len() / 2;
            let all = batch.indices.len();
            batch.images.truncate(batch.images.len() / all * half);
            for v in [&mut batch.labels, &mut batch.tokens, &mut batch.partner_labels, &mut batch.indices] {
                v.truncate(v.len() / all * half);
            }
            batch.mix.iter_mut().for_each(|m| m.partner.truncate(half));
            batch.part.end = batch.part.start + half;
        }
    };
    is_noticed("half a shard", spoil, |_| true);
}

#[test]
fn noise_addressed_by_the_row_of_a_rank_is_noticed() {
    // The masked classifier has none but drop path, which is addressed by row too.
    is_noticed("addresses", |_, batch| batch.part = 0..batch.indices.len(), |_| true);
}

#[test]
fn times_of_a_smaller_batch_are_noticed() {
    let spoil = |_: &Trainer, batch: &mut Batch| batch.global += 1;
    is_noticed("times", spoil, |kind| kind.config().augment.mix.mixup_alpha == 0.0); // mixed batches are refused
}
