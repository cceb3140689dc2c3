//! `embedded:shapes`: small scenes that are drawn and described by this program. Nothing is stored: example `i` of a split
//! is a pure function of both. A scene has one description and a description one scene, so a caption is right or wrong.
//! No scene (and so no caption) of one split is in another.

mod arranged;
mod draw;
mod scene;
#[cfg(test)]
mod tests;

use super::super::sources::beyond;
use super::super::{DataError, Image, Result};
use super::{Splits, TextSource, Texts};
use crate::data::split::Split;
pub use arranged::{MOST_OBJECTS, SceneObject, draw_scene};
use scene::Scene;
use std::sync::Arc;
use tweedie_engine::rng::{philox, uniform_of};

/// Key of all numbers here: the data are the same whatever the seed of a run.
const KEY: [u32; 2] = [0x5ba9e5, 0];

/// What a stream of numbers is for.
const SCENE: u32 = 0;
const LOOK: u32 = 1;
const SPLIT: u32 = 2;

/// Examples for training, validation, testing.
const EXAMPLES: [usize; 3] = [20_000, 1_000, 2_000];
/// Of so many scenes …
const SHARES: u32 = 23;
/// … this many are for training and this many for validation, the rest for testing.
const TRAIN_AND_VAL: [u32; 2] = [20, 1];

/// Uniform numbers, one after the other.
struct Numbers {
    at: [u32; 3],
    block: u32,
    left: Vec<u32>,
}

impl Numbers {
    fn new(stream: u32, example: u32, attempt: u32) -> Numbers {
        Numbers { at: [example, attempt, stream], block: 0, left: Vec::new() }
    }

    fn word(&mut self) -> u32 {
        loop {
            if let Some(word) = self.left.pop() {
                return word;
            }
            let [example, attempt, stream] = self.at;
            self.left = philox([self.block, example, attempt, stream], KEY).to_vec();
            self.block += 1;
        }
    }

    /// One of 0 … n − 1.
    fn below(&mut self, n: usize) -> usize {
        ((self.word() as u64 * n as u64) >> 32) as usize
    }

    /// Between `low` and `high`.
    fn within(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * uniform_of(self.word())
    }
}

/// The split that a scene belongs to, wherever it comes up.
fn split_of(scene: &Scene) -> Split {
    let share = Numbers::new(SPLIT, scene.code(), 0).below(SHARES as usize) as u32;
    let [train, val] = TRAIN_AND_VAL;
    match share {
        s if s < train => Split::Train,
        s if s < train + val => Split::Val,
        _ => Split::Test,
    }
}

/// One split.
struct Shapes {
    split: Split,
}

impl Shapes {
    /// A number that no example of another split has.
    fn id(&self, i: usize) -> u32 {
        ((self.split as u32) << 24) | i as u32
    }

    /// The first scene of this split in the example's own stream of scenes.
    fn scene(&self, i: usize) -> Result<Scene> {
        if i >= self.len() {
            return Err(beyond(i, self.len()));
        }
        let scenes = (0..).map(|attempt| Scene::random(&mut Numbers::new(SCENE, self.id(i), attempt)));
        Ok(scenes.into_iter().find(|s| split_of(s) == self.split).unwrap_or_else(|| unreachable!("an endless stream")))
    }
}

impl TextSource for Shapes {
    fn len(&self) -> usize {
        EXAMPLES[self.split as usize]
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        Ok(vec![self.scene(i)?.caption()])
    }

    fn image(&self, i: usize) -> Result<Option<Image>> {
        Ok(Some(draw::draw(&self.scene(i)?, &mut Numbers::new(LOOK, self.id(i), 0))))
    }

    fn place(&self, i: usize) -> String {
        format!("embedded shapes, {:?} example {i}", self.split)
    }

    fn bytes(&self) -> u64 {
        self.len() as u64 * 50 // a caption, about
    }
}

/// An embedded set of captions by the part of its path after `embedded:`.
pub(crate) fn open(name: &str) -> Result<Splits> {
    if name != "shapes" {
        return Err(DataError::Setting(format!("there are no embedded captions '{name}'; there is embedded:shapes")));
    }
    let splits = [Split::Train, Split::Val, Split::Test].map(|split| Some(Arc::new(Shapes { split }) as Texts));
    Ok(Splits { splits, notes: Vec::new() })
}
