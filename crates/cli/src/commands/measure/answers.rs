//! What a classifier says of each image: the row of its posterior, its temperature, predictions as a file, its worst mistakes.

use tweedie::config::SampleConfig;
use tweedie::data::Source;
use tweedie::evaluate::{self, Posteriors};
use tweedie::run::Loaded;
use tweedie::run_dir::RunDir;
use tweedie::sample::Posterior;
use tweedie::{Classifier, interrupt};

use super::eval::{Args, Row};
use super::mistakes;
use crate::failure::{Failure, Result};
use crate::report::note;
use crate::shared::model_args::ModelArgs;
use crate::shared::predictions::{self, ClassRecord};

/// Classes that predictions in a file have with their probabilities.
const TOP: usize = 5;

/// Refuse names of files that would be found wrong only after the work.
pub fn check(args: &Args) -> Result<()> {
    if let Some(out) = &args.text.out {
        let name = out.display().to_string();
        predictions::file(&name).map_err(|why| Failure::input(format!("--out {name}: {why}")))?;
    }
    Ok(())
}

/// Fit the temperature on held-out images and keep it in the run.
pub fn calibrate(model: &ModelArgs, loaded: &mut Loaded, val: &Source) -> Result<()> {
    let (dir, _) = RunDir::around(&model.run)?;
    let of = (loaded.step, model.weights());
    let c = evaluate::calibrate(&loaded.trained, val, &loaded.config, of, &interrupt::requested)?;
    dir.write_calibration(&c)?;
    note(&format!(
        "temperature {:.3}, fitted on {} images of the validation split: nll {:.3} → {:.3}, ECE {:.3} → {:.3}; kept in {}",
        c.temperature,
        c.images,
        c.nll_before,
        c.nll,
        c.ece_before,
        c.ece,
        dir.path().display()
    ));
    loaded.trained.temperature = Some(c.temperature);
    Ok(())
}

/// How good the posterior is; writes what the flags ask for beside it. `sample` is how the class of the sampler comes about.
pub fn posterior(args: &Args, loaded: &Loaded, source: &Source, sample: &SampleConfig) -> Result<Row> {
    let classes = loaded.trained.model.sizes().vocab;
    let seen = evaluate::posteriors(&loaded.trained, source, &loaded.config, args.limit, &interrupt::requested)?;
    if let Some(page) = &args.mistakes {
        mistakes::write(page, args, loaded, source, &seen)?;
    }
    if args.text.out.is_some() {
        write(args, loaded, source, sample, &seen)?;
    }
    Ok(Row {
        masked: false,
        sampler: "posterior".into(),
        steps: 1,
        guidance: 1.0,
        running_mean: false,
        votes: Posterior::DRAWS,
        temperature: Some(loaded.trained.temperature.unwrap_or(1.0)),
        report: seen.scores(classes).report(),
    })
}

/// Every image with what is said of it, or why it could not be read, in the order of the data.
fn write(args: &Args, loaded: &Loaded, source: &Source, sample: &SampleConfig, seen: &Posteriors) -> Result<()> {
    let Some(out) = &args.text.out else { return Ok(()) };
    let to = predictions::file(&out.display().to_string()).map_err(Failure::input)?;
    let label = |i: u32| loaded.trained.class_names.get(source.label(i as usize) as usize).cloned();
    let place = |i: u32| source.place(i as usize);
    let classifier = Classifier::new(&loaded.trained, sample)?;
    let failed = |(&i, why): (&u32, &String)| (i, ClassRecord::new(place(i), Err(why.clone()), TOP));
    let mut records: Vec<(u32, ClassRecord)> = seen.failed.iter().map(failed).collect();
    evaluate::class_batches(&loaded.trained, source, &loaded.config, args.limit, |images, batch| {
        let answers = classifier.classify_batch(images, &vec![0; batch.indices.len()])?;
        records.extend(batch.indices.iter().zip(answers).map(|(&i, a)| (i, ClassRecord::new(place(i), Ok(a), TOP))));
        Ok(())
    })?;
    records.sort_by_key(|r| r.0);
    let records: Vec<ClassRecord> =
        records.into_iter().map(|(i, record)| ClassRecord { label: label(i), ..record }).collect();
    predictions::write(&to, &records)
}
