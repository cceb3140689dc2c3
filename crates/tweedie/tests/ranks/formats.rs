//! Every layout, held in memory and streamed: 1, 2, 3 and 8 ranks load the same, and read different files where there are some.

use super::{assert_ranks_agree, mixing, sets};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tweedie::augment::{AugmentConfig, Transform};
use tweedie::data::{
    self, Batch, Layout, Loader, LoaderConfig, Locality, OpenOptions, Plan, SequenceConfig, SequenceOptions, Sequences,
    Source, Task,
};
use tweedie::tokenize::{Kind, Tokenizer};

/// Room for so many bytes of blocks.
fn limited(cache_bytes: usize) -> OpenOptions {
    OpenOptions { cache_bytes, decoded_bytes: 0, ..OpenOptions::default() }
}

fn light() -> Transform {
    Transform::train(&AugmentConfig::light(), 8, 3).unwrap()
}

fn classes(root: &Path, bytes: usize) -> Source {
    data::open(root, &limited(bytes)).unwrap().train().unwrap().clone()
}

/// The first limit on memory that is too small for the whole set, so that it is streamed.
fn too_few(blocks: impl Fn(usize) -> Locality) -> usize {
    let mut limits = std::iter::successors(Some(1_usize << 20), |bytes| Some(bytes * 9 / 10));
    limits
        .find(|&bytes| {
            let l = blocks(bytes);
            l.window < l.starts.len()
        })
        .unwrap()
}

fn sequences(root: &Path, task: Task, layout: Layout, bytes: usize) -> Sequences {
    let options = SequenceOptions { task: Some(task), layout, open: limited(bytes), ..SequenceOptions::default() };
    let set = data::open_sequences(root, &options).unwrap();
    let tokenizer = Arc::new(Tokenizer::train(Kind::Chars, 200, set.training_texts().unwrap()).unwrap());
    let config = match layout {
        Layout::Lines => SequenceConfig::lines(60),
        Layout::Packed => SequenceConfig { memory_bytes: bytes as u64 / 2, ..SequenceConfig::packed(30) },
    };
    Sequences::new(set.train().unwrap().clone(), tokenizer, &config).unwrap()
}

/// All batches of one epoch by their examples: each once, but for those that fill no batch.
fn assert_each_once(batches: &[Batch], examples: usize) {
    let epoch = batches.iter().filter(|b| b.position.epoch == 0);
    let seen: Vec<u32> = epoch.flat_map(|b| b.indices.clone()).collect();
    let distinct: BTreeSet<u32> = seen.iter().copied().collect();
    assert_eq!((distinct.len(), seen.len()), (seen.len(), examples / batches[0].global * batches[0].global));
}

/// Ranks that divide the lanes share no file but those that are cut between them, fewer than there are ranks. All have the same
/// number of batches, and nothing is left out but what fills none.
fn assert_disjoint(plan: &Plan) {
    let ranks = plan.ranks.len();
    assert!(plan.streamed && plan.lanes.is_multiple_of(ranks), "{} lanes for {ranks} ranks", plan.lanes);
    let mut readers = BTreeMap::<&Path, usize>::new();
    plan.ranks.iter().flat_map(|r| &r.files).for_each(|f| *readers.entry(&f.file).or_default() += 1);
    assert!(readers.values().map(|n| n - 1).sum::<usize>() < ranks, "{readers:?}");
    assert!(plan.shared.len() < ranks);
    assert!(plan.ranks.iter().all(|r| r.partners == 0), "nobody reads what another mixes");
    assert_eq!(plan.ranks.iter().map(|r| r.examples).sum::<usize>(), plan.batches * plan.batch);
    assert_eq!(plan.batches * plan.batch + plan.left_out, plan.examples);
    let examples = |r: &data::RankPlan| r.files.iter().map(|f| f.examples).sum::<usize>();
    assert!(plan.ranks.iter().all(|r| examples(r) == r.examples));
}

fn class_ranks(source: &Source, batch: usize, n: usize) -> Vec<Batch> {
    let config = LoaderConfig { threads: 2, ..LoaderConfig::train(batch, 5) };
    let load = |transform: Transform| {
        let batches = assert_ranks_agree(n, |part, start| {
            Loader::new(source.clone(), transform.clone(), LoaderConfig { part, start, ..config.clone() }).unwrap()
        });
        assert_each_once(&batches, source.len());
        batches
    };
    load(light());
    load(mixing())
}

#[test]
fn a_folder() {
    let dir = TempDir::new().unwrap();
    sets::folder(dir.path(), 60);
    let source = classes(dir.path(), 1 << 20);
    let batches = class_ranks(&source, 10, 7);
    assert_eq!(batches[0].mix.as_ref().unwrap().partner, (0..10).rev().collect::<Vec<_>>());
    let plan = Plan::classes(source, mixing(), &LoaderConfig::train(10, 5), 2, 0).unwrap();
    assert_eq!((plan.blocks, plan.lanes, plan.ranks[1].partners), (0, 1, 5 * plan.batches));
}

#[test]
fn tar_shards() {
    let dir = TempDir::new().unwrap();
    sets::tars(dir.path(), 12, 32, "cls"); // a tenth of them is held out
    let whole = classes(dir.path(), 1 << 20);
    class_ranks(&whole, 96, 5);
    let limit = too_few(|bytes| classes(dir.path(), bytes).locality().unwrap());
    let streamed = classes(dir.path(), limit);
    let batches = class_ranks(&streamed, 96, 5);
    let config = LoaderConfig::train(96, 5);
    for ranks in [1, 2, 3, 8] {
        let plan = Plan::classes(streamed.clone(), mixing(), &config, ranks, 0).unwrap();
        assert_disjoint(&plan);
        assert_eq!(plan.shared.iter().map(|s| s.again).sum::<u64>(), 0, "members are read one by one");
        assert!(plan.ranks.iter().all(|r| r.held <= (limit / ranks) as u64), "{:?}", plan.ranks[0].held);
    }
    // Streamed images are mixed within their lane of four.
    assert_eq!(batches[0].mix.as_ref().unwrap().partner[..5], [2, 3, 0, 1, 6]);
}

#[test]
fn parquet_row_groups() {
    let dir = TempDir::new().unwrap();
    sets::parquets(dir.path(), 8, 8, 6, true);
    let whole = classes(dir.path(), 1 << 20);
    class_ranks(&whole, 96, 5);
    let streamed = classes(dir.path(), too_few(|bytes| classes(dir.path(), bytes).locality().unwrap()));
    class_ranks(&streamed, 96, 5);
    for ranks in [1, 2, 3, 8] {
        let plan = Plan::classes(streamed.clone(), light(), &LoaderConfig::train(96, 5), ranks, 1).unwrap();
        assert_disjoint(&plan);
    }
    // With lanes that the ranks do not divide, whole lanes are read twice, and the plan says so.
    let eight = LoaderConfig { lanes: 8, ..LoaderConfig::train(96, 5) };
    let plan = Plan::classes(streamed, light(), &eight, 3, 0).unwrap();
    assert!(plan.shared.len() > 3 && plan.shared.iter().all(|s| s.again > 0 && s.ranks.len() > 1));
}

#[test]
fn captions_and_texts() {
    let (tars, parquets, lines) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    sets::tars(tars.path(), 8, 12, "txt");
    sets::parquets(parquets.path(), 8, 8, 4, true);
    std::fs::write(lines.path().join("train.txt"), (0..90).map(|i| sets::text(i) + "\n").collect::<String>()).unwrap();
    let (captions, text) = (Task::Caption, Task::Text);
    for (root, task, layout, streamed) in [
        (&tars, captions, Layout::Lines, false),
        (&tars, captions, Layout::Lines, true),
        (&parquets, captions, Layout::Lines, false),
        (&parquets, captions, Layout::Lines, true),
        (&lines, text, Layout::Lines, false),
        (&lines, text, Layout::Packed, false),
    ] {
        let mut source = sequences(root.path(), task, layout, 1 << 20);
        if streamed {
            let open = |bytes| sequences(root.path(), task, layout, bytes);
            source = open(too_few(|bytes| open(bytes).source().locality().unwrap()));
        }
        let config = LoaderConfig { threads: 2, ..LoaderConfig::train(24, 5) };
        let n = 2 * (source.len() / 24) - 1;
        let batches = assert_ranks_agree(n, |part, start| {
            let config = LoaderConfig { part, start, ..config.clone() };
            Loader::sequences(source.clone(), (task == captions).then(light), config).unwrap()
        });
        assert_each_once(&batches, source.len());
        for ranks in [2, 3, 8].into_iter().filter(|_| streamed) {
            assert_disjoint(&Plan::sequences(source.clone(), &config, ranks, 0).unwrap());
        }
    }
}

/// Packed text that does not fit is cut into windows by its bytes; windows begin in the blocks of their lane.
#[test]
fn packed_text_of_row_groups() {
    let dir = TempDir::new().unwrap();
    sets::parquets(dir.path(), 8, 8, 10, false);
    let open = |bytes| sequences(dir.path(), Task::Text, Layout::Packed, bytes);
    let source = open(too_few(|bytes| open(bytes).source().locality().unwrap()));
    let config = LoaderConfig { threads: 2, ..LoaderConfig::train(48, 5) };
    let batches = assert_ranks_agree(2 * (source.len() / 48) - 1, |part, start| {
        Loader::sequences(source.clone(), None, LoaderConfig { part, start, ..config.clone() }).unwrap()
    });
    assert_each_once(&batches, source.len());
    for ranks in [2, 3, 8] {
        assert_disjoint(&Plan::sequences(source.clone(), &config, ranks, 0).unwrap());
    }
}
