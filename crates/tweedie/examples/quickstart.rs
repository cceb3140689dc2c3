//! Train a classifier on embedded digits and use it: about ten seconds on two CPU cores, and nearly 90 % of the test images right.
//!
//!     cargo run --release -p tweedie --example quickstart

use tweedie::data::ImageSource;
use tweedie::{Classifier, Config, Dataset, Device, Result, Session};

fn main() -> Result<()> {
    let data = Dataset::embedded("digits")?;
    let test = data.final_split()?.0.clone();

    let config = Config::preset("digits")?.with("train.epochs", 12)?;
    let folder = std::env::temp_dir().join(format!("tweedie-example-{}", std::process::id()));
    let run = Session::create(&folder, &config, data, &Device::auto()?)?.run(|event| println!("{event}"))?;

    let classifier = Classifier::open(&run)?;
    let item = test.get(7)?;
    let answer = classifier.classify(&item.image)?;
    println!("a {}: {}", item.label, answer.top(3));
    println!("the sampler says {} and is settled to {:.0} %", answer.sampled, 100.0 * answer.certainty);

    let images = (0..test.len()).map(|i| Ok(test.get(i)?.image)).collect::<Result<Vec<_>>>()?;
    let answers = classifier.classify_all(&images)?;
    let right = answers.iter().enumerate().filter(|(i, a)| a.best() == Some(&test.label(*i).to_string())).count();
    println!("{right} of {} test images right", images.len());
    assert!(right * 10 > images.len() * 8, "a model of digits that learned nothing");
    std::fs::remove_dir_all(&folder).map_err(|e| tweedie::Error::file(&folder, e))
}
