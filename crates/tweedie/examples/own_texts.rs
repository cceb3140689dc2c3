//! Texts of one's own, and a model that writes such: counting rhymes, word by word. Stopped half way and gone on with, as any run.
//!
//!     cargo run --release -p tweedie --example own_texts

use tweedie::data::{self, SequenceSet, TextSource};
use tweedie::sample::{Prediction, Sampler, State};
use tweedie::train::TrainingSet;
use tweedie::{Config, Device, Generator, Result, Session, Times};

const WORDS: [&str; 8] = ["one", "two", "three", "four", "five", "six", "seven", "eight"];

/// Some words in a row: "three four five".
struct Counting;

impl TextSource for Counting {
    fn len(&self) -> usize {
        600
    }

    fn texts(&self, i: usize) -> data::Result<Vec<String>> {
        let words = (0..2 + i / 8 % 3).map(|k| WORDS[(i + k) % 8]);
        Ok(vec![words.collect::<Vec<_>>().join(" ")])
    }
}

/// Draws, but closer to the most likely word than the network itself would.
struct Cool;

impl Sampler for Cool {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        state.renoise(&prediction.draw_at(0.5)?, at.s)
    }
}

fn main() -> Result<()> {
    let set = || SequenceSet::texts("counting").train(Counting).hold_out(0.1).build();
    let mut config = Config::preset("ptb-chars")?.with("data.layout", "lines")?.with("data.tokens", 6)?;
    for (key, value) in [("data.tokenizer", "word:50"), ("model.denoiser.width", "64"), ("model.denoiser.depth", "2")] {
        config = config.with(key, value)?;
    }
    for (key, value) in [("epochs", 40.0), ("batch", 32.0), ("lr", 0.024), ("eval_every", 20.0), ("ema", 0.98)] {
        config = config.with(&format!("train.{key}"), value)?;
    }
    let config = config.with("model.denoiser.heads", 2)?.with("sample.steps", 16)?;
    let folder = std::env::temp_dir().join(format!("tweedie-texts-{}", std::process::id()));
    let device = Device::auto()?;

    let data = TrainingSet::sequences(set()?, &config, None)?;
    let halfway = Session::create(&folder, &config, data, &device)?.stop_when(|| true).run(|_| {})?;
    println!("stopped at step {} of {}", halfway.step, halfway.total_steps);
    let data = TrainingSet::sequences(set()?, &config, Some(&folder.join("tokenizer.json")))?;
    let run = Session::resume_with(&folder, data, &device)?.run(|event| println!("{event}"))?;

    let texts = Generator::open(&run)?.with_sampler(Cool).texts(50)?;
    let all: Vec<String> = (0..Counting.len()).flat_map(|i| Counting.texts(i).unwrap_or_default()).collect();
    let right = texts.iter().filter(|t| all.contains(t)).count();
    println!("{right} of {} texts count right, such as {:?}", texts.len(), &texts[..3]);
    assert!(right > 35);
    std::fs::remove_dir_all(&folder).map_err(|e| tweedie::Error::file(&folder, e))
}
