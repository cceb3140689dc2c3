//! Data inside the program: 1,797 handwritten digits of 8×8 pixels (UCI, "Optical recognition of handwritten digits",
//! E. Alpaydin and C. Kaynak, CC BY 4.0; the set that scikit-learn ships).

use std::sync::Arc;

use super::{DataError, Found, MemorySource, Result, Source};

/// One label byte and 64 grey values from 0 to 16 per image.
static DIGITS: &[u8] = include_bytes!("../../assets/digits.bin");

/// Every fifth image is held out: 1,438 for training, 359 for testing. Writers appear in both.
const TEST_EVERY: usize = 5;

/// An embedded data set by the part of its path after `embedded:`.
pub fn open(name: &str) -> Result<Found> {
    if name != "digits" {
        let captions = if name == "shapes" { " (embedded:shapes has captions: data.task = \"caption\")" } else { "" };
        return Err(DataError::Setting(format!(
            "there are no embedded classes '{name}'; there is embedded:digits{captions}"
        )));
    }
    let (mut train, mut test) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for (i, record) in DIGITS.chunks_exact(65).enumerate() {
        let (pixels, labels) = if i % TEST_EVERY == TEST_EVERY - 1 { &mut test } else { &mut train };
        labels.push(record[0] as u32);
        pixels.extend(record[1..].iter().map(|v| (*v as u32 * 255 / 16) as u8));
    }
    let source = |(pixels, labels): (Vec<u8>, Vec<u32>), name: &str| -> Result<Source> {
        Ok(Arc::new(MemorySource::new(format!("embedded digits, {name}"), 8, 8, 1, pixels, labels)?))
    };
    Ok(Found {
        train: Some(source(train, "train")?),
        val: None,
        test: Some(source(test, "test")?),
        class_names: (0..10).map(|d| d.to_string()).collect(),
        channels: 1,
        notes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::OpenOptions;
    use super::*;

    #[test]
    fn digits_have_their_known_counts() {
        let options = OpenOptions { val_fraction: 0.0, ..OpenOptions::default() };
        let d = super::super::open("embedded:digits", &options).unwrap();
        let (train, test) = (d.train().unwrap(), d.test.as_ref().unwrap());
        assert_eq!((train.len(), test.len()), (1438, 359));
        assert_eq!(d.val().unwrap().len(), 359); // nothing held out: the test split stands in
        let both: Vec<usize> = d.class_counts(train).iter().zip(d.class_counts(test)).map(|(a, b)| a + b).collect();
        assert_eq!(both, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]); // as published
        let d = super::super::open("embedded:digits", &OpenOptions::default()).unwrap();
        let held = d.val().unwrap().len();
        assert!((100..200).contains(&held) && d.train().unwrap().len() + held == 1438, "{held} held out");
        assert_eq!(d.final_split().unwrap().0.len(), 359);
        assert!(open("faces").err().unwrap().to_string().contains("embedded:digits"));
    }
}
