//! The loader: full coverage, the same bits whatever the threads, resumption, errors and a clean end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tweedie::augment::{AugmentConfig, MixConfig, Transform};
use tweedie::data::{
    Batch, DataError, Image, ImageSource, Item, Loader, LoaderConfig, MemorySource, OnCorrupt, Position, Source,
};

/// Example `i` is an image whose values are all i, of class i % 3; some cannot be read.
struct Numbers {
    n: usize,
    corrupt: fn(usize) -> bool,
    reads: AtomicUsize,
}

impl ImageSource for Numbers {
    fn len(&self) -> usize {
        self.n
    }
    fn get(&self, i: usize) -> Result<Item, DataError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if (self.corrupt)(i) {
            return Err(DataError::Corrupt { place: self.place(i), message: "torn".into() });
        }
        let noise = (0..8 * 8 * 3).map(|k| (i * 31 + k * 7) as u8).collect();
        Ok(Item { image: Image { width: 8, height: 8, channels: 3, data: noise }, label: self.label(i) })
    }
    fn label(&self, i: usize) -> u32 {
        i as u32 % 3
    }
    fn place(&self, i: usize) -> String {
        format!("number {i}")
    }
}

fn numbers(n: usize, corrupt: fn(usize) -> bool) -> Arc<Numbers> {
    Arc::new(Numbers { n, corrupt, reads: AtomicUsize::new(0) })
}

fn full() -> Transform {
    let mix = MixConfig { mixup_alpha: 0.8, cutmix_alpha: 1.0, ..MixConfig::default() };
    Transform::train(&AugmentConfig { mix, ..AugmentConfig::imagenet() }, 12, 3).unwrap()
}

fn plain() -> Transform {
    Transform::eval(&AugmentConfig::none(), 8, 3).unwrap()
}

fn take(loader: &mut Loader, n: usize) -> Vec<Batch> {
    loader.take(n).map(|b| b.unwrap()).collect()
}

fn same(a: &[Batch], b: &[Batch]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            a.position == b.position
                && a.labels == b.labels
                && a.indices == b.indices
                && a.mix == b.mix
                && a.images.iter().map(|v| v.to_bits()).eq(b.images.iter().map(|v| v.to_bits()))
        })
}

#[test]
fn an_evaluation_sees_every_example_once_in_order() {
    let mut loader = Loader::new(numbers(23, |_| false), plain(), LoaderConfig::eval(5)).unwrap();
    let batches: Vec<Batch> = loader.by_ref().map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|b| b.labels.len()).collect::<Vec<_>>(), [5, 5, 5, 5, 3]);
    assert_eq!(batches.iter().flat_map(|b| b.indices.clone()).collect::<Vec<_>>(), (0..23).collect::<Vec<_>>());
    assert!(batches.iter().all(|b| b.images.len() == b.labels.len() * 8 * 8 * 3 && b.mix.is_none()));
    assert!(batches.iter().all(|b| b.labels.iter().zip(&b.indices).all(|(l, i)| *l == i % 3)));
    assert!(loader.next().is_none() && loader.next().is_none());
}

#[test]
fn an_epoch_visits_every_example_once_in_a_new_order() {
    let config = LoaderConfig { epochs: Some(2), ..LoaderConfig::train(5, 1) };
    let mut loader = Loader::new(numbers(20, |_| false), plain(), config).unwrap();
    assert_eq!(loader.batches_per_epoch(), 4);
    let batches: Vec<Batch> = loader.by_ref().map(Result::unwrap).collect();
    let epoch = |e: u32| -> Vec<u32> {
        batches.iter().filter(|b| b.position.epoch == e).flat_map(|b| b.indices.clone()).collect()
    };
    assert_ne!(epoch(0), epoch(1));
    for e in 0..2 {
        let mut seen = epoch(e);
        seen.sort();
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
    }
}

/// The full recipe with mixing: one thread or four, started at once or resumed in the middle of the second epoch.
#[test]
fn threads_and_resumption_do_not_change_a_bit() {
    let with = |threads, prefetch, start, n| {
        let config = LoaderConfig { threads, prefetch, start, ..LoaderConfig::train(6, 9) };
        take(&mut Loader::new(numbers(40, |i| i % 11 == 3), full(), config).unwrap(), n)
    };
    let reference = with(1, 0, Position::default(), 15);
    assert!(same(&reference, &with(4, 8, Position::default(), 15)));
    let at = Position { epoch: 1, batch: 3 }; // six batches per epoch
    assert_eq!(reference[9].position, at);
    assert!(same(&reference[9..], &with(3, 4, at, 6)));
    assert!(reference.iter().all(|b| b.mix.is_some()));
    assert!(!same(&reference[..6], &reference[6..12]));
}

#[test]
fn recycled_memory_makes_no_difference() {
    let start = || Loader::new(numbers(40, |_| false), full(), LoaderConfig::train(6, 9)).unwrap();
    let reference = take(&mut start(), 12);
    let mut loader = start();
    for want in &reference {
        let got = loader.next().unwrap().unwrap();
        assert!(same(std::slice::from_ref(&got), std::slice::from_ref(want)));
        loader.recycle(got);
    }
}

#[test]
fn unreadable_images_are_replaced_in_training_and_left_out_in_evaluation() {
    let corrupt = |i| i % 5 == 2;
    let mut loader = Loader::new(numbers(20, corrupt), full(), LoaderConfig::train(10, 1)).unwrap();
    let batches = take(&mut loader, 2);
    assert!(batches.iter().all(|b| b.labels.len() == 10 && b.indices.iter().all(|&i| i % 5 != 2)));
    let skipped = loader.skipped();
    assert_eq!(skipped.errors.keys().copied().collect::<Vec<_>>(), [2, 7, 12, 17]);
    assert!(skipped.errors[&7].contains("number 7: unreadable image: torn"));

    let mut loader = Loader::new(numbers(20, corrupt), plain(), LoaderConfig::eval(10)).unwrap();
    let batches: Vec<Batch> = loader.by_ref().map(Result::unwrap).collect();
    assert_eq!(batches[0].indices, [0, 1, 3, 4, 5, 6, 8, 9]);
    let alone = Loader::new(numbers(20, |_| false), plain(), LoaderConfig::eval(1)).unwrap();
    let eight: Vec<f32> = alone.map(Result::unwrap).find(|b| b.indices == [8]).unwrap().images;
    assert_eq!(batches[0].images[6 * 192..7 * 192], eight);
    assert_eq!(loader.skipped().count(), 4);
}

#[test]
fn an_unreadable_image_is_fatal_on_demand_and_so_are_too_many() {
    let config = LoaderConfig { on_corrupt: OnCorrupt::Fail, ..LoaderConfig::eval(4) };
    let mut loader = Loader::new(numbers(12, |i| i == 9), plain(), config).unwrap();
    assert!(loader.next().unwrap().is_ok() && loader.next().unwrap().is_ok());
    assert!(loader.next().unwrap().unwrap_err().to_string().contains("number 9"));
    assert!(loader.next().is_none());
    let mut loader = Loader::new(numbers(12, |_| true), full(), LoaderConfig::train(4, 0)).unwrap();
    let text = loader.next().unwrap().unwrap_err().to_string();
    assert!(text.contains("in a row could not be read") && text.contains("torn"), "{text}");
}

#[test]
fn a_dropped_loader_stops_reading() {
    let source = numbers(1000, |_| false);
    let mut loader = Loader::new(source.clone(), plain(), LoaderConfig::train(10, 1)).unwrap();
    loader.next().unwrap().unwrap();
    drop(loader);
    let reads = source.reads.load(Ordering::Relaxed);
    assert_eq!(Arc::strong_count(&source), 1, "all threads have ended");
    assert!(reads < 200, "the queue is bounded: {reads} reads");
}

#[test]
fn impossible_settings_are_refused() {
    let refuse = |n, config| Loader::new(numbers(n, |_| false), plain(), config).err().unwrap().to_string();
    assert!(refuse(3, LoaderConfig::train(4, 0)).contains("3 images do not fill one batch of 4"));
    assert!(refuse(0, LoaderConfig::eval(4)).contains("0 images"));
    assert!(refuse(3, LoaderConfig::eval(0)).contains("at least 1"));
    assert!(MemorySource::new("x", 2, 2, 1, vec![0; 7], vec![0, 1]).is_err());
}

#[test]
fn a_panic_in_a_thread_arrives_as_an_error() {
    let source: Source = numbers(12, |i| if i == 5 { panic!("told to") } else { false });
    let mut loader = Loader::new(source, plain(), LoaderConfig::eval(2)).unwrap();
    let last = loader.by_ref().last().unwrap();
    assert!(last.unwrap_err().to_string().contains("panicked"));
}
