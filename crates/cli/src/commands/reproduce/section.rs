//! What an experiment has to show: tables, claims of the paper held against our numbers, figures, data.

use serde_json::{Map, Value, json};
use tweedie_figures::Drawing;

use super::measurements::{Summary, deviation};
use crate::report::{Align, Table};

/// One experiment, ready to be written.
#[derive(Default)]
pub struct Section {
    /// Name of the command and of its files.
    pub id: &'static str,
    pub title: String,
    /// What of the paper it stands beside.
    pub of: &'static str,
    /// How it was done here.
    pub text: Vec<String>,
    pub results: Vec<Row>,
    pub grids: Vec<Grid>,
    pub claims: Vec<Claim>,
    pub figures: Vec<Shown>,
    pub data: Vec<Data>,
}

/// One line of a table of results.
pub struct Row {
    /// What is being compared; a new one begins a block.
    pub block: &'static str,
    pub name: String,
    pub sampling: String,
    /// Top-1 in % on ImageNet, where the paper has it, with the paper's digits.
    pub paper: Option<&'static str>,
    pub ours: Summary,
}

/// A table of any kind; its numbers are among the section's data.
pub struct Grid {
    pub columns: Vec<(String, Align)>,
    pub rows: Vec<Vec<String>>,
}

/// A figure with what it shows.
pub struct Shown {
    pub name: String,
    pub caption: String,
    pub drawing: Drawing,
}

/// Numbers behind a figure or a table.
#[derive(Clone)]
pub struct Data {
    pub name: String,
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<Value>>,
}

/// What the paper says of a difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// So many points.
    By(f64),
    /// That it is positive.
    Above,
    /// That there is none to notice.
    Same,
    /// Nothing.
    Silent,
}

/// That one number is above another.
pub struct Claim {
    pub what: String,
    pub paper: Paper,
    pub ours: f64,
    /// Standard error of ours.
    pub error: f64,
}

impl Claim {
    /// `a` minus `b`. The error is that of independent numbers, more than it is for the same test images.
    pub fn new(what: &str, paper: Paper, a: &Summary, b: &Summary) -> Claim {
        let error = (a.uncertainty().powi(2) + b.uncertainty().powi(2)).sqrt();
        Claim { what: what.into(), paper, ours: a.mean() - b.mean(), error }
    }

    /// The difference in the paper, in words.
    pub fn of_paper(&self) -> String {
        match self.paper {
            Paper::By(p) => format!("{p:+.2}"),
            Paper::Above => "above".into(),
            Paper::Same => "no difference".into(),
            Paper::Silent => "–".into(),
        }
    }

    /// The difference here with its standard error: three decimals where two would hide it.
    pub fn of_ours(&self) -> String {
        let digits = if self.error < 0.05 { 3 } else { 2 };
        format!("{:+.digits$} ± {:.digits$}", self.ours, self.error)
    }

    pub fn verdict(&self) -> &'static str {
        let told = match self.paper {
            Paper::By(p) => Some(p > 0.0),
            Paper::Above => Some(true),
            Paper::Same | Paper::Silent => None,
        };
        match (self.ours.abs() <= 2.0 * self.error, told) {
            (true, _) if self.paper == Paper::Same => "same, no difference",
            (true, _) => "too close to tell",
            (false, Some(above)) if above == (self.ours > 0.0) => "same direction",
            (false, Some(_)) => "opposite direction",
            (false, None) if self.ours > 0.0 => "above",
            (false, None) => "below",
        }
    }
}

/// "98.33", "98.33 ± 0.42".
pub fn with_spread(s: &Summary) -> String {
    match s.deviation() {
        Some(d) => format!("{:.2} ± {d:.2}", s.mean()),
        None => format!("{:.2}", s.mean()),
    }
}

/// "1.234", "1.234 ± 0.010": a mean over seeds, with three decimals.
pub fn with_deviation(per_seed: &[f64]) -> String {
    let mean = per_seed.iter().sum::<f64>() / per_seed.len().max(1) as f64;
    match deviation(per_seed) {
        Some(d) => format!("{mean:.3} ± {d:.3}"),
        None => format!("{mean:.3}"),
    }
}

impl Section {
    /// Everything as data: results, claims, and what the experiment itself gives.
    pub fn all_data(&self) -> Vec<Data> {
        let mut all = self.data.clone();
        if !self.results.is_empty() {
            all.push(self.results_data());
        }
        if !self.claims.is_empty() {
            let row =
                |c: &Claim| vec![json!(c.what), json!(c.of_paper()), json!(c.ours), json!(c.error), json!(c.verdict())];
            let columns = vec!["claim", "paper", "difference", "standard_error", "verdict"];
            let name = format!("{}-claims", self.id);
            all.push(Data { name, columns, rows: self.claims.iter().map(row).collect() });
        }
        all
    }

    fn results_data(&self) -> Data {
        let row = |r: &Row| {
            let seeds: Vec<String> = r.ours.per_seed.iter().map(f64::to_string).collect();
            vec![
                json!(r.block),
                json!(r.name),
                json!(r.sampling),
                json!(r.paper.and_then(|p| p.parse::<f64>().ok())),
                json!(r.ours.mean()),
                json!(r.ours.deviation()),
                json!(r.ours.standard_error()),
                json!(r.ours.images),
                json!(seeds.join(" ")),
            ]
        };
        let columns = vec![
            "block",
            "name",
            "sampling",
            "paper_top1",
            "top1",
            "deviation_over_seeds",
            "standard_error_of_test_set",
            "test_images",
            "top1_of_seeds",
        ];
        Data { name: self.id.into(), columns, rows: self.results.iter().map(row).collect() }
    }

    /// For the terminal.
    pub fn to_text(&self) -> String {
        use Align::{Left, Right};
        let mut out = format!("\n{} ({})\n", self.title, self.of);
        if !self.results.is_empty() {
            let columns =
                [("", Left), ("sampling", Left), ("paper", Right), ("ours, top-1 %", Right), ("standard error", Right)];
            let mut table = Table::new(&columns);
            for r in &self.results {
                table.row(vec![
                    r.name.clone(),
                    r.sampling.clone(),
                    r.paper.unwrap_or("–").into(),
                    with_spread(&r.ours),
                    format!("{:.2}", r.ours.standard_error()),
                ]);
            }
            out += &table.shown();
        }
        for g in &self.grids {
            let columns: Vec<(&str, Align)> = g.columns.iter().map(|(c, a)| (c.as_str(), *a)).collect();
            let mut table = Table::new(&columns);
            g.rows.iter().for_each(|r| table.row(r.clone()));
            out += &table.shown();
        }
        for c in &self.claims {
            out += &format!("{}: paper {}, ours {}: {}\n", c.what, c.of_paper(), c.of_ours(), c.verdict());
        }
        out
    }
}

impl Data {
    pub fn csv(&self) -> String {
        let cell = |v: &Value| match v {
            Value::Null => String::new(),
            Value::String(s) if s.contains([',', '"', '\n']) => format!("\"{}\"", s.replace('"', "\"\"")),
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        let line = |cells: Vec<String>| cells.join(",") + "\n";
        let rows = self.rows.iter().map(|r| line(r.iter().map(cell).collect()));
        line(self.columns.iter().map(|c| c.to_string()).collect()) + &rows.collect::<String>()
    }

    pub fn json(&self) -> Value {
        let row = |r: &Vec<Value>| {
            let pairs = self.columns.iter().zip(r).map(|(c, v)| (c.to_string(), v.clone()));
            Value::Object(pairs.collect::<Map<_, _>>())
        };
        Value::Array(self.rows.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(top1: f64) -> Summary {
        Summary { per_seed: vec![top1], images: 10_000 }
    }

    #[test]
    fn a_claim_needs_two_standard_errors() {
        // At 90 % of 10,000 images a difference has a standard error of 0.42.
        let verdict = |paper, a, b| Claim::new("", Paper::By(paper), &of(a), &of(b)).verdict();
        assert_eq!(verdict(0.5, 90.0, 88.0), "same direction");
        assert_eq!(verdict(0.5, 88.0, 90.0), "opposite direction");
        assert_eq!(verdict(-0.5, 88.0, 90.0), "same direction");
        assert_eq!(verdict(0.5, 90.0, 89.5), "too close to tell");
        let without = |paper, a, b| Claim::new("", paper, &of(a), &of(b)).verdict();
        assert_eq!(without(Paper::Above, 88.0, 90.0), "opposite direction");
        assert_eq!(without(Paper::Same, 90.0, 89.5), "same, no difference");
        assert_eq!((without(Paper::Same, 90.0, 88.0), without(Paper::Silent, 88.0, 90.0)), ("above", "below"));
        // Nothing right on either side has no error at all.
        assert_eq!(verdict(0.5, 0.0, 0.0), "too close to tell");
    }

    #[test]
    fn csv_quotes_what_it_must() {
        let d = Data {
            name: "d".into(),
            columns: vec!["a", "b"],
            rows: vec![vec![json!("x, \"y\""), json!(1.5)], vec![json!("z"), Value::Null]],
        };
        assert_eq!(d.csv(), "a,b\n\"x, \"\"y\"\"\",1.5\nz,\n");
        assert_eq!(d.json(), json!([{"a": "x, \"y\"", "b": 1.5}, {"a": "z", "b": null}]));
    }
}
