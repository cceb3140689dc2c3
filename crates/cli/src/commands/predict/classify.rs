//! `tweedie classify`: what is on these images?

use std::path::PathBuf;

use tweedie::data::Task;
use tweedie::run::Loaded;
use tweedie::{Answer, Classifier, Image};

use crate::failure::{Failure, Result};
use crate::report::{self, in_one_line};
use crate::shared::image_input::{self, ImageArgs, ImageInput};
use crate::shared::model_args::ModelArgs;
use crate::shared::numbers;
use crate::shared::predictions::{self, ClassRecord, Form};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    images: ImageArgs,
    /// Classes to show
    #[arg(long, default_value_t = 5, value_name = "K", value_parser = numbers::whole(1..=1 << 24))]
    top: usize,
    /// Write the answers, those of unreadable images among them, as .csv or .jsonl
    #[arg(long, value_name = "FILE", value_parser = predictions::file)]
    out: Option<(PathBuf, Form)>,
    /// Steps of the sampler, whose class is told where it is another than the most likely one
    #[arg(long, value_name = "S", value_parser = numbers::whole(1..=100_000))]
    steps: Option<usize>,
    /// Guidance weight of the sampler
    #[arg(long, value_name = "W")]
    guidance: Option<f32>,
    /// Steps of the sampler go by the mean of the logits of all steps so far; false: by those of the last one
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    running_mean: Option<bool>,
    /// Majority over this many draws of the sampler
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    votes: Option<usize>,
    /// Seed of the sampling noise
    #[arg(long)]
    seed: Option<u64>,
}

pub fn run(args: &Args) -> Result<()> {
    let loaded = args.model.load()?;
    if loaded.config.data.task != Task::Class {
        let run = args.model.run.display();
        return Err(Failure::input(format!("{run}: this model writes text, it does not classify"))
            .hint(format!("tweedie caption {run} IMAGE")));
    }
    args.model.say_if_uncalibrated(&loaded);
    let classifier = classifier(args, &loaded)?;
    let inputs = args.images.inputs()?;
    let mut records = Vec::with_capacity(inputs.len());
    for some in inputs.chunks(image_input::read_ahead(&loaded.trained.model.device())) {
        for (input, answer) in some.iter().zip(answers(&classifier, some)?) {
            if let (false, Ok(answer)) = (args.model.json, &answer) {
                report::print_words(&format!("{}\n", line(&input.name, answer, args.top)))?;
            }
            records.push(ClassRecord::new(input.name.clone(), answer, args.top));
        }
    }
    if args.model.json {
        report::print_json(&records)?;
    }
    if let Some(out) = &args.out {
        predictions::write(out, &records)?;
    }
    image_input::unreadable(records.iter().filter(|r| r.error.is_some()).count(), records.len())
}

fn classifier<'a>(args: &Args, loaded: &'a Loaded) -> Result<Classifier<'a>> {
    let mut sample = loaded.config.sample.clone();
    sample.steps = args.steps.unwrap_or(sample.steps);
    sample.guidance = args.guidance.unwrap_or(sample.guidance);
    sample.running_mean = args.running_mean.unwrap_or(sample.running_mean);
    sample.votes = args.votes.unwrap_or(sample.votes);
    sample.seed = args.seed.unwrap_or(sample.seed);
    Ok(Classifier::new(&loaded.trained, &sample)?)
}

/// What is on each image, or why it could not be read.
fn answers(classifier: &Classifier, inputs: &[ImageInput]) -> Result<Vec<std::result::Result<Answer, String>>> {
    let mut read = image_input::read(inputs);
    let images: Vec<Image> = read.iter_mut().filter_map(|r| r.as_mut().ok().map(std::mem::take)).collect();
    let mut told = classifier.classify_all(&images)?.into_iter();
    let lost = || "there is no answer".to_string();
    Ok(read.into_iter().map(|r| r.and_then(|_| told.next().ok_or_else(lost))).collect())
}

/// An image with its most likely classes, on one line.
fn line(image: &str, answer: &Answer, top: usize) -> String {
    let disagreement = answer.disagreement().map(|d| format!("  ({d})")).unwrap_or_default();
    format!("{}: {}{}", in_one_line(image), answer.top(top), in_one_line(&disagreement))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie::Ranking;

    #[test]
    fn a_disagreement_is_told() {
        let posterior = Ranking(vec![("5".into(), 0.6), ("3".into(), 0.4)]);
        let of = |sampled: &str| Answer { posterior: posterior.clone(), sampled: sampled.into(), certainty: 0.9 };
        assert_eq!(line("x.png", &of("5"), 9), "x.png: 5 60.0 %, 3 40.0 %");
        assert_eq!(line("x.png", &of("3"), 1), "x.png: 5 60.0 %  (sampler says 3, posterior 5)");
    }
}
