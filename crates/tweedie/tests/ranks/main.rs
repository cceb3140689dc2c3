//! Several ranks: what they load together is what one alone would load, to the bit.

mod formats;
mod sets;
mod stream;

use std::sync::Arc;
use tweedie::augment::{AugmentConfig, MixConfig, Transform};
use tweedie::data::{Batch, Dataset, Image, Items, Loader, LoaderConfig, Part, Position, Source};

/// The recipe with mixup and cutmix.
fn mixing() -> Transform {
    let mix = MixConfig { mixup_alpha: 0.8, cutmix_alpha: 1.0, ..MixConfig::default() };
    Transform::train(&AugmentConfig { mix, ..AugmentConfig::light() }, 8, 3).unwrap()
}

/// What the ranks hold of one batch, as one. Their rows must follow each other, and their numbers differ by one at most.
fn joined(parts: Vec<Batch>) -> Batch {
    let mut whole = Batch::default();
    let (least, most) = (parts.iter().map(|b| b.part.len()).min(), parts.iter().map(|b| b.part.len()).max());
    assert!(most.unwrap() - least.unwrap() <= 1);
    for b in parts {
        assert_eq!((b.part.start, b.part.len()), (whole.part.end, b.indices.len()));
        assert!(whole.global == 0 || (whole.global, whole.position) == (b.global, b.position));
        (whole.global, whole.position, whole.part.end) = (b.global, b.position, b.part.end);
        whole.images.extend(b.images);
        whole.labels.extend(b.labels);
        whole.tokens.extend(b.tokens);
        whole.indices.extend(b.indices);
        whole.partner_labels.extend(b.partner_labels);
        match (&mut whole.mix, b.mix) {
            (Some(whole), Some(mix)) => {
                assert_eq!((whole.lambda, whole.cut), (mix.lambda, mix.cut));
                whole.partner.extend(mix.partner);
            }
            (none, mix) => *none = mix,
        }
    }
    assert_eq!(whole.part.end, whole.global);
    whole
}

/// Whether two batches are the same to the bit.
fn same(a: &Batch, b: &Batch) -> bool {
    let bits = |b: &Batch| b.images.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    (a.position, &a.part, a.global) == (b.position, &b.part, b.global)
        && (&a.labels, &a.tokens, &a.indices) == (&b.labels, &b.tokens, &b.indices)
        && (&a.mix, &a.partner_labels) == (&b.mix, &b.partner_labels)
        && bits(a) == bits(b)
}

/// Batches of 1, 2, 3 and 8 ranks from the start and from the middle of the second epoch: joined, all are those of one rank, of
/// which `n` are given back.
fn assert_ranks_agree(n: usize, load: impl Fn(Part, Position) -> Loader) -> Vec<Batch> {
    let alone: Vec<Batch> = load(Part::WHOLE, Position::default()).take(n).map(Result::unwrap).collect();
    assert_eq!(alone.len(), n);
    for ranks in [2, 3, 8] {
        for from in [0, n / 2 + 1] {
            let start = alone[from].position;
            let mut loaders: Vec<Loader> = (0..ranks).map(|rank| load(Part { rank, ranks }, start)).collect();
            assert!(loaders.windows(2).all(|l| l[0].batches_per_epoch() == l[1].batches_per_epoch()));
            for want in &alone[from..] {
                let got = joined(loaders.iter_mut().map(|l| l.next().unwrap().unwrap()).collect());
                assert!(same(&got, want), "{ranks} ranks, {:?}", want.position);
            }
        }
    }
    alone
}

/// Images of noise, no two alike, in three classes.
fn noise(n: usize) -> Source {
    let item = |i: usize| tweedie::data::Item {
        image: Image {
            width: 8,
            height: 8,
            channels: 3,
            data: (0..192).map(|k| (i * 31 + k * 7 + k * i) as u8).collect(),
        },
        label: i as u32 % 3,
    };
    Arc::new(Items::new((0..n).map(item).collect()))
}

#[test]
fn images_in_memory_are_mixed_over_the_whole_batch() {
    let load = |part, start| {
        let config = LoaderConfig { part, start, threads: 2, ..LoaderConfig::train(13, 7) };
        Loader::new(noise(70), mixing(), config).unwrap()
    };
    let batches = assert_ranks_agree(8, load); // five batches an epoch
    for b in &batches {
        let mix = b.mix.as_ref().unwrap();
        assert_eq!(mix.partner, (0..13).rev().collect::<Vec<_>>());
        let labels: Vec<u32> = mix.partner.iter().map(|&i| b.labels[i as usize]).collect();
        assert_eq!(b.partner_labels, labels);
    }
    assert!(!same(&batches[0], &batches[1]));
}

/// Each rank must see what another seed or place would change: the comparison above can fail.
#[test]
fn other_seeds_and_places_are_told_apart() {
    let load = |seed, start| Loader::new(noise(70), mixing(), LoaderConfig { start, ..LoaderConfig::train(13, seed) });
    let first = |seed, batch| load(seed, Position { epoch: 0, batch }).unwrap().next().unwrap().unwrap();
    let one = first(7, 0);
    assert!(same(&one, &first(7, 0)) && !same(&one, &first(8, 0)) && !same(&one, &first(7, 1)));
    let mut wrong = one.clone();
    wrong.images[5] += 1e-6;
    assert!(!same(&one, &wrong));
    let mut wrong = one.clone();
    wrong.partner_labels[3] += 1;
    assert!(!same(&one, &wrong));
}

#[test]
fn an_evaluation_is_split_over_ranks() {
    let path = Transform::eval(&AugmentConfig::none(), 8, 1).unwrap();
    let source = Dataset::embedded("digits").unwrap().final_split().unwrap().0.clone();
    for ranks in [1, 3, 8] {
        let loader = |rank| {
            let config = LoaderConfig { part: Part { rank, ranks }, ..LoaderConfig::eval(50) };
            Loader::new(source.clone(), path.clone(), config).unwrap()
        };
        let mut loaders: Vec<Loader> = (0..ranks).map(loader).collect();
        let batches = loaders[0].batches_per_epoch();
        let all = (0..batches).map(|_| joined(loaders.iter_mut().map(|l| l.next().unwrap().unwrap()).collect()));
        let seen: Vec<u32> = all.flat_map(|b| b.indices).collect();
        assert_eq!(seen, (0..359).collect::<Vec<_>>());
        assert!(loaders.iter_mut().all(|l| l.next().is_none()));
    }
}

#[test]
fn parts_that_cannot_be_are_refused() {
    let start = |part, config: LoaderConfig| {
        Loader::new(noise(70), mixing(), LoaderConfig { part, ..config }).err().map(|e| e.to_string())
    };
    let few = start(Part { rank: 0, ranks: 8 }, LoaderConfig::train(7, 0)).unwrap();
    assert!(few.contains("a batch of 7 has no example for each of 8 ranks"), "{few}");
    let other = start(Part { rank: 3, ranks: 3 }, LoaderConfig::train(7, 0)).unwrap();
    assert!(other.contains("rank 3 of 3"), "{other}");
    let loose = LoaderConfig { drop_last: false, ..LoaderConfig::train(7, 0) };
    assert!(start(Part { rank: 0, ranks: 2 }, loose.clone()).unwrap().contains("drop_last"));
    assert!(start(Part::WHOLE, loose).is_none());
}
