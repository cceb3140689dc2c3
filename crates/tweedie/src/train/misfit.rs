//! Settings that do not fit the data: what is refused, and what is only worth knowing, each with the changes that help.

use super::Splits;
use crate::config::Config;
use crate::data::{Dataset, Image, ImageSource};
use crate::error::{Error, Result};

/// Images that are looked at to tell whether any of them has a colour.
const LOOKED_AT: usize = 16;

/// Grey images are repeated over three channels by the transform; the other way round would lose colour, if there is any.
pub(super) fn check_channels(set: &Dataset, config: &Config) -> Result<()> {
    let (have, of_images) = (config.model.encoder.channels, set.channels);
    if of_images <= have {
        return Ok(());
    }
    let train = set.train()?;
    let count = LOOKED_AT.min(train.len());
    let coloured = (0..count).filter_map(|k| train.get(k * train.len() / count).ok()).any(|item| !item.image.is_grey());
    if !coloured {
        return Ok(());
    }
    let what = format!("model.encoder.channels = {have}, but the images have {of_images}");
    let mut sets = vec![format!("model.encoder.channels={of_images}")];
    // Values for one channel would be refused next.
    for (key, values) in [("augment.mean", &config.augment.mean), ("augment.std", &config.augment.std)] {
        if !values.is_empty() && values.len() != of_images {
            sets.push(format!("{key}=[]"));
        }
    }
    Err(Error::Misfit { what, sets })
}

/// What fits badly and is no error.
pub(super) fn notes(config: &Config, splits: &Splits, batches: usize) -> Vec<String> {
    let image = match splits {
        Splits::Classes { train, .. } => first_image(&**train),
        Splits::Sequences { train, .. } => train.image(0).ok(),
    };
    let resized = image.filter(|_| config.model.is_conditional()).and_then(|image| resized(config, &image));
    resized.into_iter().chain(long_warmup(config, batches)).collect()
}

fn first_image(source: &dyn ImageSource) -> Option<Image> {
    Some(source.get(0).ok()?.image)
}

/// Small images that are shown at another size lose what they show, or cost more than they are worth. Photographs are
/// always made smaller.
fn resized(config: &Config, image: &Image) -> Option<String> {
    const SMALL: usize = 128;
    let (e, side) = (&config.model.encoder, image.width.min(image.height));
    let to = e.image;
    if side == to || (side > SMALL && to <= side) {
        return None;
    }
    let grid = e.grid().max(1);
    // The patch that divides the side into nearly as many parts.
    let patch = (1..=side).filter(|p| side.is_multiple_of(*p)).min_by_key(|p| (side / p).abs_diff(grid))?;
    let patch = if patch == e.patch { String::new() } else { format!(" --set model.encoder.patch={patch}") };
    Some(format!(
        "images (the first has {}×{}) are scaled to {to}×{to}; for their own size: --set model.encoder.image={side}{patch}",
        image.width, image.height
    ))
}

/// The rate would never reach its peak.
fn long_warmup(config: &Config, batches: usize) -> Option<String> {
    let t = &config.train;
    let steps = t.epochs * batches;
    let warmup = (f64::from(t.warmup_epochs) * batches as f64) as usize;
    (warmup >= steps && steps > 1).then(|| {
        format!(
            "the warm-up (train.warmup_epochs = {}) is as long as the run (train.epochs = {}), so the rate never reaches \
             train.lr; better: --set train.warmup_epochs={:.2}",
            t.warmup_epochs,
            t.epochs,
            t.epochs as f64 * 0.05
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_images_are_not_resized_without_a_word() {
        let config = Config::preset("digits").unwrap();
        let said = |w, h| resized(&config, &Image::filled(w, h, &[0]));
        let note = said(28, 28).unwrap();
        assert!(note.contains("the first has 28×28) are scaled to 8×8"), "{note}");
        assert!(note.ends_with("--set model.encoder.image=28 --set model.encoder.patch=7"), "{note}");
        assert_eq!(said(8, 8), None);
        assert_eq!(said(500, 375), None);
        assert!(resized(&Config::preset("imagenette").unwrap(), &Image::filled(32, 32, &[0; 3])).is_some());
    }

    #[test]
    fn a_warm_up_longer_than_the_run_is_told() {
        let config = |epochs: usize| Config::preset("digits").unwrap().with("train.epochs", epochs).unwrap();
        assert!(long_warmup(&config(3), 10).unwrap().ends_with("--set train.warmup_epochs=0.15"));
        assert_eq!(long_warmup(&config(60), 10), None);
    }
}
