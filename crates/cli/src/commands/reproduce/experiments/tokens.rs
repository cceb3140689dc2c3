//! Probabilities of single words over sampling steps: one that was corrected, one that was stable, one that was contested.

use serde_json::json;
use tweedie_figures::{Axis, Figure, HeatmapSpec, LinesSpec, Panel, PanelLine, PanelsSpec, Series, Tone};

use super::super::caption_measurements::{CANDIDATES, Story};
use super::super::measurements::Measurements;
use super::super::section::{Data, Grid, Section, Shown};
use super::super::variant::Variant::{self, CaptionTdd};
use super::caption_sampling_name;
use crate::failure::Result;
use crate::report::Align;
use tweedie::generate::Token;

pub const NEEDS: &[Variant] = &[CaptionTdd];

/// Candidates that are drawn.
const DRAWN: usize = 5;

/// A place of a caption, step by step.
struct Place<'a> {
    story: &'a Story,
    at: usize,
    steps: Vec<&'a Token>,
    /// The image's references, as words.
    known: &'a [Vec<String>],
    /// The end of a text and what follows it: no words.
    marks: &'a [String],
}

impl Place<'_> {
    /// The likeliest candidate of a step.
    fn leader(&self, step: usize) -> &str {
        self.steps[step].top.first().map_or("", |c| &c.0)
    }

    /// The word of the caption.
    fn last(&self) -> &str {
        self.leader(self.steps.len() - 1)
    }

    /// What a candidate has at a step; 0 below the candidates that a trace tells.
    fn p(&self, step: usize, word: &str) -> f64 {
        self.steps[step].top.iter().find(|c| c.0 == word).map_or(0.0, |c| c.1)
    }

    /// How clearly a wrong first guess became a right last one; none where that did not happen.
    fn corrected(&self) -> Option<f64> {
        let (first, last) = (self.leader(0), self.last());
        let there = |w: &str| self.known.iter().any(|r| r.iter().any(|x| x == w));
        let here = |w: &str| self.known.iter().any(|r| r.get(self.at).is_some_and(|x| x == w));
        let right = (!there(first) && there(last)) || (!here(first) && here(last));
        let word = !self.marks.iter().any(|m| m == first);
        (first != last && word && right).then(|| self.p(0, first).min(self.p(self.steps.len() - 1, last)))
    }

    /// The least probability that the one word had which led throughout.
    fn stable(&self) -> Option<f64> {
        let last = self.last();
        let throughout = (0..self.steps.len()).all(|i| self.leader(i) == last);
        throughout.then(|| (0..self.steps.len()).map(|i| self.p(i, last)).fold(1.0, f64::min))
    }

    /// What the second candidate had, summed over steps: much only where two share nearly everything.
    fn contested(&self) -> f64 {
        self.steps.iter().map(|t| t.top.get(1).map_or(0.0, |c| c.1)).sum()
    }

    /// The candidates that reached most, the final word first.
    fn rivals(&self) -> Vec<String> {
        let mut all: Vec<(String, f64)> = Vec::new();
        for (word, p) in self.steps.iter().flat_map(|t| &t.top) {
            match all.iter_mut().find(|c| c.0 == *word) {
                Some(c) => c.1 = c.1.max(*p),
                None => all.push((word.clone(), *p)),
            }
        }
        let last = self.last().to_string();
        // Equal ones stay in the order in which they appeared.
        all.sort_by(|a, b| (b.0 == last).cmp(&(a.0 == last)).then(b.1.total_cmp(&a.1)));
        all.into_iter().take(DRAWN).map(|c| c.0).collect()
    }
}

/// How much a place is of a kind; nothing where it is not.
type Measure = fn(&Place) -> Option<f64>;

/// The three picks, where the traces have them.
fn picks<'a, 'b>(places: &'b [Place<'a>]) -> Vec<(&'static str, &'b Place<'a>)> {
    let best = |of: Measure, without: &[&Place]| -> Option<&'b Place<'a>> {
        let mut found: Option<(&'b Place<'a>, f64)> = None;
        for p in places.iter().filter(|p| !without.iter().any(|w| std::ptr::eq(*w, *p))) {
            // The first of equals.
            if let Some(v) = of(p).filter(|v| found.is_none_or(|f| *v > f.1)) {
                found = Some((p, v));
            }
        }
        found.map(|f| f.0)
    };
    let mut all: Vec<(&'static str, &'b Place<'a>)> = Vec::new();
    let kinds: [(&'static str, Measure); 3] = [
        ("corrected", |p: &Place| p.corrected()),
        ("stable", |p: &Place| p.stable()),
        ("contested", |p: &Place| Some(p.contested())),
    ];
    for (kind, of) in kinds {
        let taken: Vec<&Place> = all.iter().map(|a| a.1).collect();
        all.extend(best(of, &taken).map(|p| (kind, p)));
    }
    all
}

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let stories = measured.stories(CaptionTdd, 0)?;
    let tokenizer = measured.model(CaptionTdd, 0)?.trained.tokenizer()?.clone();
    let words = |s: &Story| -> Vec<Vec<String>> {
        let of = |r: &String| tokenizer.encode(r).into_iter().map(|id| tokenizer.token(id)).collect();
        s.references.iter().map(of).collect()
    };
    let known: Vec<Vec<Vec<String>>> = stories.iter().map(words).collect();
    let marks = [tokenizer.token(tokenizer.eos()), tokenizer.token(tokenizer.pad())];
    let mut places = Vec::new();
    for (story, known) in stories.iter().zip(&known) {
        for at in 0..story.length {
            let place =
                Place { story, at, steps: story.steps.iter().map(|s| &s.tokens[at]).collect(), known, marks: &marks };
            if !marks.iter().any(|m| m == place.last()) {
                places.push(place);
            }
        }
    }
    let picked = picks(&places);
    let (mut figures, mut rows, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for (kind, p) in &picked {
        let rivals = p.rivals();
        let n = p.steps.len();
        for word in &rivals {
            for (i, step) in p.story.steps.iter().enumerate() {
                let at = [json!(kind), json!(p.story.index), json!(p.at + 1), json!(i + 1), json!(step.t)];
                rows.push(at.into_iter().chain([json!(word), json!(p.p(i, word))]).collect());
            }
        }
        told.push(vec![
            kind.to_string(),
            format!("{}, {}", p.story.index, p.at + 1),
            format!("{} {:.2}", p.leader(0), p.p(0, p.leader(0))),
            format!("{} {:.2}", p.last(), p.p(n - 1, p.last())),
            p.story.text.clone(),
        ]);
        figures.extend(drawings(kind, p, &rivals)?);
    }
    if !picked.is_empty() {
        figures.insert(0, context(&picked)?);
    }
    let missing: Vec<&str> =
        ["corrected", "stable", "contested"].into_iter().filter(|k| !picked.iter().any(|p| p.0 == *k)).collect();
    let mut text = vec![
        format!(
            "{}; seed 0. The {} words of the captions of the first {} test images were followed, and three were picked by rule. \
             Corrected: no reference of the image has the word that was guessed first, or has it at this place, while one has the last; of these the one whose lesser \
             probability (of the wrong word at first, of the right one at last) is largest. Stable: one word led at every step; \
             the one whose least probability is largest. Contested: the one whose second candidate \
             had most probability, summed over steps.",
            caption_sampling_name(measured.caption_config(CaptionTdd)?),
            places.len(),
            stories.len()
        ),
        format!(
            "A trace has the {CANDIDATES} likeliest words of each step; a candidate that was not among them is drawn at 0. The \
             first step sees pure noise and the image."
        ),
    ];
    if !missing.is_empty() {
        text.push(format!("No word of this kind was found: {}.", missing.join(", ")));
    }
    use Align::Left;
    let columns = ["", "image, place", "first guess", "last", "caption"].map(|c| (c.to_string(), Left)).to_vec();
    Ok(Section {
        id: "tokens",
        title: "Single words over sampling steps".into(),
        of: "figure of token-level trajectories",
        text,
        grids: if told.is_empty() { Vec::new() } else { vec![Grid { columns, rows: told }] },
        figures,
        data: vec![Data {
            name: "tokens".into(),
            columns: vec!["kind", "image", "place", "step", "timestep", "candidate", "probability"],
            rows,
        }],
        ..Section::default()
    })
}

/// The captions that the picks stand in, with the picked word marked.
fn context(picked: &[(&'static str, &Place)]) -> Result<Shown> {
    let panel = |(kind, p): &(&'static str, &Place)| {
        let tone = |i: usize| if i == p.at { Tone::Marked } else { Tone::Plain };
        let last = p.story.steps.last().map(|s| &s.tokens[..p.story.length.saturating_sub(1)]).unwrap_or_default();
        let words = last.iter().enumerate().map(|(i, t)| (t.text.clone().unwrap_or_default(), tone(i)));
        let truth = p.story.references.first().map_or("", String::as_str);
        let lines = vec![
            PanelLine { label: kind.to_string(), words: words.collect() },
            PanelLine::new("truth", truth, Tone::Plain),
        ];
        Panel { picture: p.story.picture.clone(), lines }
    };
    let drawing = Figure::panels(&PanelsSpec {
        title: "The picked words in their captions".into(),
        columns: 1,
        panels: picked.iter().map(panel).collect(),
        width: Some(600.0),
        side: Some(60.0),
    })?;
    Ok(Shown { name: "tokens-context".into(), caption: "The picked word of each caption is blue.".into(), drawing })
}

/// Lines and a heatmap of the candidates.
fn drawings(kind: &str, p: &Place, rivals: &[String]) -> Result<[Shown; 2]> {
    let steps = p.steps.len();
    let x: Vec<f64> = (1..=steps).map(|i| i as f64).collect();
    let series = rivals.iter().map(|w| Series::new(w, x.clone(), (0..steps).map(|i| p.p(i, w)).collect()));
    let title = format!("A {kind} word: {}", p.last());
    let lines = Figure::lines(&LinesSpec {
        title: title.clone(),
        x: Axis::linear("sampling step"),
        y: Axis::linear("probability").range(0.0, 1.02),
        series: series.collect(),
        size: Some((320.0, 220.0)),
    })?;
    let cells = rivals.iter().flat_map(|w| (0..steps).map(|i| p.p(i, w)));
    let heat = Figure::heatmap(&HeatmapSpec {
        title,
        y_label: String::new(),
        rows: rivals.to_vec(),
        x_label: "timestep t".into(),
        columns: p.story.steps.iter().map(|s| s.t.to_string()).collect(),
        values: cells.collect(),
        colour: Axis::linear("probability").range(0.0, 1.0),
        size: Some((320.0, 190.0)),
    })?;
    let place = format!("Image {}, word {}", p.story.index, p.at + 1);
    Ok([
        Shown {
            name: format!("tokens-{kind}"),
            caption: format!("{place}: its candidates over steps."),
            drawing: lines,
        },
        Shown {
            name: format!("tokens-{kind}-heatmap"),
            caption: format!("{place}: the same as colours, as in the paper."),
            drawing: heat,
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::super::trajectory::tests::story;
    use super::*;

    fn token(top: &[(&str, f64)]) -> Token {
        Token { text: None, p: 0.0, entropy: 0.0, top: top.iter().map(|(w, p)| (w.to_string(), *p)).collect() }
    }

    #[test]
    fn each_kind_finds_its_word() {
        let s = story(&["a"]);
        let known = [vec!["cat", "cat", "the", "the", "red"].into_iter().map(String::from).collect::<Vec<_>>()];
        let tokens = [
            // Wrong at first, right at last, clearly.
            [token(&[("dog", 0.8), ("cat", 0.1)]), token(&[("cat", 0.9), ("dog", 0.1)])],
            // The same, less clearly.
            [token(&[("cow", 0.6), ("cat", 0.3)]), token(&[("cat", 0.9), ("cow", 0.1)])],
            [token(&[("the", 0.99), ("a", 0.01)]), token(&[("the", 0.98), ("a", 0.02)])],
            [token(&[("the", 0.7), ("a", 0.3)]), token(&[("the", 0.98), ("a", 0.02)])],
            [token(&[("red", 0.51), ("blue", 0.49)]), token(&[("red", 0.55), ("blue", 0.45)])],
        ];
        let rows = tokens.iter().enumerate();
        let places: Vec<Place> =
            rows.map(|(at, t)| Place { story: &s, at, steps: t.iter().collect(), known: &known, marks: &[] }).collect();
        let found: Vec<(&str, usize)> = picks(&places).into_iter().map(|(k, p)| (k, p.at)).collect();
        assert_eq!(found, [("corrected", 0), ("stable", 2), ("contested", 4)]);
        assert_eq!(places[0].rivals(), ["cat", "dog"]);
        assert_eq!((places[0].p(1, "cow"), places[4].stable()), (0.0, Some(0.51)));
        // Nothing to correct: the first guess was right.
        assert_eq!(places[4].corrected(), None);
        assert_eq!(picks(&[]).len(), 0);
    }
}
