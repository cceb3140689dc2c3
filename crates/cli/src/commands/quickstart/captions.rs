//! `tweedie quickstart --task caption`: captions of embedded scenes by TDD and by its masked twin.

use std::path::Path;

use tweedie::config::{Method, SampleConfig};
use tweedie::data::Sequences;
use tweedie::evaluate::{Captions, captions};
use tweedie::files::write_atomic;
use tweedie::train::open_sequences;
use tweedie_engine::Device;
use tweedie_figures::{Axis, Drawing, Figure, LinesSpec, Series, Tile, TilesSpec};

use super::{Finished, fit, loss_figure};
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, note, with_bar};
use crate::shared::{image_input, recipe};

const STEPS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Test images for the figure over steps; the table looks at all.
const FEW: usize = 512;
/// Examples in words, and in the picture: the first ones, then so many on which a model was wrong.
const TOLD: (usize, usize) = (3, 3);
const SHOWN: (usize, usize) = (8, 4);

/// What was measured on the test split.
struct Measured {
    /// By its own number of steps, on all images.
    full: Captions,
    /// In one step, on all images.
    one: Captions,
    /// Exact matches for each of [`STEPS`] on some images, in percent, with standard errors.
    sweep: (Vec<f64>, Vec<f64>),
}

/// Train both, compare them on the test split, draw the figures into `out`, and say it in words.
pub fn run(sets: &[String], out: &Path, device: &Device) -> Result<String> {
    let (config, _) = recipe::resolve("shapes", sets, &[])?;
    let mut both = Vec::new();
    for (name, method) in [("TDD", Method::Tdd), ("MDD", Method::Mdd)] {
        let mut config = config.clone();
        config.model.method = method;
        note("");
        note(&format!(
            "{name}: {}",
            match method {
                Method::Tdd => "every word of a caption a one-hot vector under Gaussian noise, all denoised at once",
                Method::Mdd => "its masked twin, the same network that fills in masked words",
            }
        ));
        both.push(fit(name, &config, &out.join(name.to_lowercase()), device)?);
    }
    let [tdd, mdd] = both.as_mut_slice() else {
        return Err(Failure::ours("there are not two models"));
    };
    let set = open_sequences(&config.data, config.seed)?;
    let test = set.test.ok_or_else(|| Failure::input("the data have no test split"))?;
    let layout = config.data.sequence_config();
    let test = Sequences::new(test, tdd.session.trainer().trained.tokenizer()?.clone(), &layout)?;
    note("");
    note("captions for the test images");
    let (of_tdd, of_mdd) = (with_bar("TDD", || measure(tdd, &test))?, with_bar("MDD", || measure(mdd, &test))?);
    let figures = out.join("figures");
    for (name, drawing) in [
        ("curves", curves(tdd, mdd)?),
        ("loss", loss_figure(tdd, mdd, "of noisy words (TDD), of masked words (MDD)")?),
        ("steps", steps(&of_tdd, &of_mdd)?),
        ("samples", tiles(&of_tdd.full, &test)?),
    ] {
        report::save_figure(&drawing, &figures, name)?;
    }
    write_images(&test, &out.join("images"))?;
    let run = out.display();
    Ok(format!(
        "\n{} test images, averaged weights; a caption counts if every word is right:\n{}\n{}\n\
         figures ({}): curves, loss, steps, samples (.svg and .png)\n\n\
         next:\n  \
         tweedie caption {run}/tdd {run}/images/5.png\n  \
         tweedie trace {run}/tdd {run}/images/5.png  as it comes about\n  \
         tweedie eval {run}/tdd --steps 1,5,20\n  \
         tweedie data inspect embedded:shapes\n  \
         tweedie train shapes --set process.schedule=vocab-aware --set train.noisy_copies=4\n  \
         tweedie config show shapes   every setting\n",
        test.len(),
        table(tdd, mdd, &of_tdd, &of_mdd)?,
        examples(&of_tdd.full, &of_mdd.full),
        figures.display(),
    ))
}

fn measure(f: &mut Finished, test: &Sequences) -> Result<Measured> {
    let chosen = f.session.trainer().config.sample.steps;
    let mut draw = |steps: usize, limit: usize| {
        f.session
            .trainer_mut()
            .averaged(|t, c| captions(t, test, c, &SampleConfig { steps, ..c.sample.clone() }, limit))
    };
    let mut sweep = (Vec::new(), Vec::new());
    for steps in STEPS {
        let made = draw(steps, FEW)?;
        let (p, n) = (made.exact(), made.texts.len().max(1) as f64);
        sweep.0.push(100.0 * p);
        sweep.1.push(100.0 * (p * (1.0 - p) / n).sqrt());
    }
    Ok(Measured { full: draw(chosen, 0)?, one: draw(1, 0)?, sweep })
}

fn table(tdd: &Finished, mdd: &Finished, of_tdd: &Measured, of_mdd: &Measured) -> Result<String> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("model", Left),
        ("sampling steps", Right),
        ("exact match %", Right),
        ("CIDEr-D", Right),
        ("trained in s", Right),
    ]);
    for (f, m) in [(tdd, of_tdd), (mdd, of_mdd)] {
        for (steps, made) in [(f.session.trainer().config.sample.steps, &m.full), (1, &m.one)] {
            table.row(vec![
                f.name.into(),
                steps.to_string(),
                format!("{:.2}", 100.0 * made.exact()),
                format!("{:.3}", made.scores()?.cider_d),
                format!("{:.0}", f.seconds),
            ]);
        }
    }
    Ok(table.shown())
}

/// The first examples, and the first behind them for which `wrong` holds (others where there are too few).
fn pick(n: usize, (first, more): (usize, usize), wrong: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut picked: Vec<usize> = (0..first.min(n)).collect();
    picked.extend((first..n).filter(|i| wrong(*i)).take(more));
    let rest: Vec<usize> =
        (0..n).filter(|i| !picked.contains(i)).take((first + more).saturating_sub(picked.len())).collect();
    picked.extend(rest);
    picked
}

/// Some captions of both, below the right ones.
fn examples(tdd: &Captions, mdd: &Captions) -> String {
    let said = |c: &Captions, i: usize| if c.matches[i] { "right".to_string() } else { c.texts[i].clone() };
    let n = tdd.texts.len().min(mdd.texts.len());
    let picked = pick(n, TOLD, |i| !tdd.matches[i] || !mdd.matches[i]);
    let line =
        |i: usize| format!("{}\n  TDD: {}\n  MDD: {}\n", tdd.references[i].join(" | "), said(tdd, i), said(mdd, i));
    let text: String = picked.into_iter().map(line).collect();
    format!("the first test images, and then the first that one of the two gets wrong:\n{text}")
}

fn curves(tdd: &Finished, mdd: &Finished) -> Result<Drawing> {
    let curve = |f: &Finished| Series::new(f.name, f.curve.0.clone(), f.curve.1.clone());
    Ok(Figure::lines(&LinesSpec {
        title: "Captions with every word right, TDD and its masked twin".into(),
        x: Axis::linear("epoch"),
        y: Axis::linear("exact match on the validation split (%)"),
        series: vec![curve(tdd), curve(mdd)],
        ..LinesSpec::default()
    })?)
}

fn steps(tdd: &Measured, mdd: &Measured) -> Result<Drawing> {
    let x: Vec<f64> = STEPS.iter().map(|s| *s as f64).collect();
    let series = |name: &str, m: &Measured| Series::new(name, x.clone(), m.sweep.0.clone()).spread(&m.sweep.1);
    Ok(Figure::lines(&LinesSpec {
        title: format!("Exact match over sampling steps, {FEW} test images (± one standard error)"),
        x: Axis::log("sampling steps"),
        y: Axis::linear("exact match (%)"),
        series: vec![series("TDD", tdd), series("MDD", mdd)],
        ..LinesSpec::default()
    })?)
}

fn tiles(made: &Captions, test: &Sequences) -> Result<Drawing> {
    let mut tiles = Vec::new();
    for i in pick(made.texts.len(), SHOWN, |i| !made.matches[i]) {
        let image = test.image(made.indices[i] as usize)?;
        let caption = made.texts[i].clone();
        tiles.push(Tile { picture: image_input::picture(image), caption, right: Some(made.matches[i]) });
    }
    Ok(Figure::tiles(&TilesSpec {
        title: format!("TDD's captions: the first {} test images, then the first that are wrong", SHOWN.0),
        columns: 4,
        lines: 4,
        tiles,
        width: Some(480.0),
    })?)
}

/// The first test images as files, to try other commands on.
fn write_images(test: &Sequences, folder: &Path) -> Result<()> {
    let io = |e: std::io::Error| Failure::input(format!("{}: {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(io)?;
    for i in 0..SHOWN.0.min(test.len()) {
        let png = test.image(i)?.to_png().map_err(Failure::ours)?;
        write_atomic(&folder.join(format!("{i}.png")), &png)?;
    }
    Ok(())
}
