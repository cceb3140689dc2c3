//! Predictions as files: CSV or JSON lines, with what could not be read among them.

use std::path::PathBuf;

use serde::Serialize;
use tweedie::Answer;

use crate::failure::{Failure, Result};
use crate::report::note;

/// How predictions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Csv,
    JsonLines,
}

/// A file for predictions; the end of its name says in which form. For clap.
pub fn file(name: &str) -> std::result::Result<(PathBuf, Form), String> {
    let path = PathBuf::from(name);
    match path.extension().and_then(|e| e.to_str()) {
        Some("csv") => Ok((path, Form::Csv)),
        Some("jsonl") => Ok((path, Form::JsonLines)),
        _ => Err("predictions are written as .csv or .jsonl".into()),
    }
}

/// One line of such a file.
pub trait Record: Serialize {
    /// The columns of CSV.
    const COLUMNS: &'static [&'static str];

    /// What stands in them.
    fn cells(&self) -> Vec<String>;
}

/// Write them all.
pub fn write<R: Record>((path, form): &(PathBuf, Form), records: &[R]) -> Result<()> {
    let bytes = match form {
        Form::Csv => csv(records)?,
        Form::JsonLines => {
            let lines = records.iter().map(|r| Ok(serde_json::to_string(r)? + "\n")).collect::<Result<String>>()?;
            lines.into_bytes()
        }
    };
    tweedie::files::write_atomic(path, &bytes)?;
    note(&format!("wrote {}", path.display()));
    Ok(())
}

fn csv<R: Record>(records: &[R]) -> Result<Vec<u8>> {
    let failed = |e: &dyn std::fmt::Display| Failure::ours(format!("predictions as CSV: {e}"));
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(R::COLUMNS).map_err(|e| failed(&e))?;
    for r in records {
        out.write_record(r.cells()).map_err(|e| failed(&e))?;
    }
    out.into_inner().map_err(|e| failed(&e))
}

/// What a classifier says of one image, or why it says nothing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClassRecord {
    pub image: String,
    /// What it is, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The most likely class, and its probability given the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Most likely first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<(String, f64)>,
    /// The class that the sampler ends at, and how settled it is on that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certainty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ClassRecord {
    pub fn new(image: String, answer: std::result::Result<Answer, String>, top: usize) -> ClassRecord {
        match answer {
            Err(why) => ClassRecord { image, error: Some(why), ..ClassRecord::default() },
            Ok(a) => ClassRecord {
                image,
                class: a.best().map(String::from),
                probability: Some(a.probability()),
                classes: a.top(top).0,
                sampled: Some(a.sampled),
                certainty: Some(a.certainty),
                ..ClassRecord::default()
            },
        }
    }
}

impl Record for ClassRecord {
    const COLUMNS: &'static [&'static str] =
        &["image", "label", "class", "probability", "sampled", "certainty", "error"];

    fn cells(&self) -> Vec<String> {
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        let number = |p: Option<f64>| p.map(|p| format!("{p:.6}")).unwrap_or_default();
        vec![
            self.image.clone(),
            text(&self.label),
            text(&self.class),
            number(self.probability),
            text(&self.sampled),
            number(self.certainty),
            text(&self.error),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie::Ranking;

    #[test]
    fn failed_images_are_among_them() {
        let posterior = Ranking(vec![("a, \"b\"".into(), 0.75), ("c".into(), 0.25)]);
        let answer = Answer { posterior, sampled: "c".into(), certainty: 0.9 };
        let records =
            [ClassRecord::new("x.png".into(), Ok(answer), 1), ClassRecord::new("y.png".into(), Err("torn".into()), 1)];
        let text = String::from_utf8(csv(&records).unwrap()).unwrap();
        let want = "image,label,class,probability,sampled,certainty,error\n\
                    x.png,,\"a, \"\"b\"\"\",0.750000,c,0.900000,\ny.png,,,,,,torn\n";
        assert_eq!(text, want);
        let dir = tempfile::tempdir().unwrap();
        let to = file(dir.path().join("p.jsonl").to_str().unwrap()).unwrap();
        write(&to, &records).unwrap();
        let lines = std::fs::read_to_string(&to.0).unwrap();
        assert_eq!(lines.lines().nth(1), Some("{\"image\":\"y.png\",\"error\":\"torn\"}"));
        assert!(file("p.txt").is_err() && file("p").is_err());
    }
}
