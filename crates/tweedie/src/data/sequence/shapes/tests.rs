use super::scene::{COLOURS, Object, PLACES, RELATIONS, SHAPES, SIZES};
use super::*;
use crate::data::{SequenceOptions, Task, open_sequences};
use crate::tokenize::{Kind, Tokenizer};
use std::collections::{HashMap, HashSet};

/// The scene that a caption describes.
fn parse(caption: &str) -> Option<Scene> {
    let object = |text: &str| -> Option<Object> {
        let [a, size, colour, shape] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
        let find = |list: &[&str], word: &str| list.iter().position(|w| *w == word);
        let object =
            Object { size: find(&SIZES, size)?, colour: find(&COLOURS, colour)?, shape: find(&SHAPES, shape)? };
        (a == "a").then_some(object)
    };
    let objects = |text: &str| text.split(" and ").map(object).collect::<Option<Vec<_>>>();
    if let Some((name, place)) = caption.split_once(" at the ") {
        let place = PLACES.iter().position(|p| p.strip_prefix("at the ") == Some(place))?;
        return Some(Scene::One(object(name)?, place));
    }
    let relation = (0..RELATIONS.len()).find(|r| caption.contains(RELATIONS[*r]))?;
    let (left, right) = caption.split_once(&format!(" {} ", RELATIONS[relation]))?;
    let (left, right) = (objects(left)?, objects(right)?);
    match (&left[..], &right[..]) {
        ([a], [b]) => Some(Scene::Two([*a, *b], relation)),
        ([a], [b, c]) => Some(Scene::Three([*a, *b, *c], relation, 1)),
        ([a, b], [c]) => Some(Scene::Three([*a, *b, *c], relation, 2)),
        _ => None,
    }
}

const SPLITS: [Split; 3] = [Split::Train, Split::Val, Split::Test];

#[test]
fn captions_tell_the_scene_and_splits_share_none() {
    let mut seen: [HashSet<String>; 3] = Default::default();
    let mut codes: HashMap<u32, Scene> = HashMap::new();
    let mut sizes = [0; 3];
    for split in SPLITS {
        let source = Shapes { split };
        for i in 0..source.len() {
            let (scene, caption) = (source.scene(i).unwrap(), source.texts(i).unwrap().remove(0));
            assert_eq!(parse(&caption), Some(scene), "{caption}");
            assert!(caption.split(' ').count() <= 15, "{caption}");
            assert_eq!(*codes.entry(scene.code()).or_insert(scene), scene);
            sizes[match scene {
                Scene::One(..) => 0,
                Scene::Two(..) => 1,
                Scene::Three(..) => 2,
            }] += 1;
            seen[split as usize].insert(caption);
        }
    }
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        assert!(seen[a].is_disjoint(&seen[b]), "splits {a} and {b}");
    }
    // A quarter, a half, a quarter; five standard deviations of 23,000 draws are 330.
    for (n, share) in sizes.into_iter().zip([1, 2, 1]) {
        assert!((n - 5750_i32 * share).abs() < 400, "{sizes:?}");
    }
}

#[test]
fn a_picture_shows_what_its_caption_says() {
    // Every object's colour is the most frequent ink near its place, judged from pixels alone.
    let inks = [[222, 40, 40], [40, 160, 60], [45, 95, 225], [245, 205, 20], [155, 50, 185], [28, 28, 28]];
    let source = Shapes { split: Split::Val };
    for i in 0..300 {
        let image = source.image(i).unwrap().unwrap();
        let mut counts = [0; 6];
        for p in image.data.chunks_exact(3) {
            let close = |ink: &[i32; 3]| ink.iter().zip(p).all(|(a, b)| (a - *b as i32).abs() <= 15);
            if let Some(c) = inks.iter().position(close) {
                counts[c] += 1;
            }
        }
        let objects: Vec<Object> = match source.scene(i).unwrap() {
            Scene::One(o, _) => vec![o],
            Scene::Two(o, _) => o.to_vec(),
            Scene::Three(o, ..) => o.to_vec(),
        };
        for (colour, count) in counts.iter().enumerate() {
            let size = objects.iter().filter(|o| o.colour == colour).map(|o| [8, 30][o.size]).sum::<i32>();
            assert!(*count >= size && (size > 0 || *count == 0), "example {i}: {objects:?}, {counts:?}");
        }
    }
}

/// The data are part of every result on them: they must not change unnoticed, nor depend on the machine.
#[test]
fn examples_are_what_they_were() {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    let mut add = |bytes: &[u8]| bytes.iter().for_each(|b| sum = (sum ^ *b as u64).wrapping_mul(0x100_0000_01b3));
    for split in SPLITS {
        for i in 0..200 {
            let source = Shapes { split };
            add(source.texts(i).unwrap()[0].as_bytes());
            add(&source.image(i).unwrap().unwrap().data);
        }
    }
    assert_eq!(sum, 0x8f58_12e3_516c_66a2, "{sum:#x}");
    let first = Shapes { split: Split::Val }.texts(0).unwrap();
    assert_eq!(first, ["a small red cross and a large purple square left of a large red circle"]);
}

#[test]
fn opens_with_its_words() {
    let set = open_sequences("embedded:shapes", &SequenceOptions::default()).unwrap();
    assert_eq!(
        (set.task, set.name.as_str(), set.val_origin.as_str()),
        (Task::Caption, "shapes", "the validation split")
    );
    let lens = [&set.train, &set.val, &set.test].map(|s| s.as_ref().unwrap().len());
    assert_eq!(lens, EXAMPLES);
    let tokenizer = Tokenizer::train(Kind::Word, 100, set.training_texts().unwrap()).unwrap();
    let mut words: Vec<&str> = SIZES.iter().chain(&COLOURS).chain(&SHAPES).copied().collect();
    words.extend(PLACES.iter().chain(&RELATIONS).flat_map(|p| p.split(' ')).chain(["a", "and"]));
    let words: HashSet<&str> = words.into_iter().collect();
    assert_eq!(tokenizer.vocab(), 3 + words.len()); // and padding, end, unknown
    let caption = set.test.as_ref().unwrap().texts(0).unwrap().remove(0);
    assert_eq!(tokenizer.decode(&tokenizer.encode(&caption)), caption);
    let wrong = open_sequences("embedded:faces", &SequenceOptions::default()).err().unwrap().to_string();
    assert!(wrong.contains("embedded:shapes"), "{wrong}");
}
