//! A caption at every sampling step beside its image.

use serde_json::{Value, json};
use tweedie_figures::{Axis, Figure, LinesSpec, Panel, PanelLine, PanelsSpec, Series, Tone};

use super::super::caption_measurements::{Story, mean};
use super::super::measurements::Measurements;
use super::super::section::{Data, Section, Shown};
use super::super::variant::Variant::{self, CaptionMdd, CaptionTdd};
use super::{caption_sampling_name, over_seeds};
use crate::failure::Result;
use tweedie::generate::Step;

pub const NEEDS: &[Variant] = &[CaptionTdd, CaptionMdd];

/// Images that are shown: the first ones, and so many whose words changed most often.
const SHOWN: (usize, usize) = (2, 2);
/// Most steps that are drawn; the data have all.
const MOST_STEPS: usize = 12;

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let (mut seen, mut series) = (Followed::default(), Vec::new());
    for &variant in NEEDS {
        series.push(seen.follow(measured, variant)?);
    }
    let Followed { mut figures, rows, settled_rows, first_right, images: followed } = seen;
    let several = if measured.plan.seeds() > 1 { "; bands: one deviation over seeds" } else { "" };
    figures.push(Shown {
        name: "trajectory-settled".into(),
        caption: format!("Share of places that hold the caption’s final word, {followed} test images{several}."),
        drawing: Figure::lines(&LinesSpec {
            title: "When captions settle".into(),
            x: Axis::linear("sampling step"),
            y: Axis::linear("places with their final word (%)").range(0.0, 104.0),
            series,
            size: Some((420.0, 250.0)),
        })?,
    });
    let at_first: Vec<f64> = first_right.iter().filter(|f| f.0 == CaptionTdd).map(|f| f.1).collect();
    let sampling = caption_sampling_name(measured.caption_config(CaptionTdd)?);
    Ok(Section {
        id: "trajectory",
        title: "How a caption comes about".into(),
        of: "figure of predictions at several timesteps",
        text: vec![
            "The paper sees noise at large timesteps, then nouns of what is in the picture, then a sentence. It does not say \
             whether it shows the noisy state or the network’s guess; here it is the guess, which is what can be read."
                .into(),
            format!(
                "{}. At its first step, from pure noise, TDD’s guess already has {:.1} % of the words (and ends) that the \
                 caption will have.",
                sampling,
                mean(&at_first)
            ),
            format!(
                "Of the first {followed} test images those shown are the first {} and the {} whose words changed most often.",
                SHOWN.0, SHOWN.1
            ),
        ],
        figures,
        data: vec![
            Data {
                name: "trajectory".into(),
                columns: vec!["variant", "image", "step", "timestep", "alpha_bar", "text", "caption", "references"],
                rows,
            },
            Data {
                name: "trajectory-settled".into(),
                columns: vec!["variant", "seed", "step", "settled_percent", "mean_entropy_nats"],
                rows: settled_rows,
            },
        ],
        ..Section::default()
    })
}

/// What was seen of captions as they came about.
#[derive(Default)]
struct Followed {
    figures: Vec<Shown>,
    /// Texts of the images that are shown, step by step.
    rows: Vec<Vec<Value>>,
    settled_rows: Vec<Vec<Value>>,
    /// Percent of final words at the first step, for every seed.
    first_right: Vec<(Variant, f64)>,
    images: usize,
}

impl Followed {
    /// Follow a variant over all seeds and draw the first; gives its share of final words over the steps.
    fn follow(&mut self, measured: &mut Measurements, variant: Variant) -> Result<Series> {
        let mut curves: Vec<Vec<f64>> = Vec::new();
        for seed in 0..measured.plan.seeds() {
            let stories = measured.stories(variant, seed)?;
            let curve = final_words(&stories);
            self.images = stories.len();
            for (i, share) in curve.iter().enumerate() {
                let entropy = entropy(&stories, i);
                let row = vec![json!(variant.id()), json!(seed), json!(i + 1), json!(share), json!(entropy)];
                self.settled_rows.push(row);
            }
            self.first_right.push((variant, curve.first().copied().unwrap_or(0.0)));
            curves.push(curve);
            if seed == 0 {
                let picked = pick(&stories);
                self.rows.extend(picked.iter().flat_map(|s| told(variant, s)));
                self.figures.push(panels(variant, &picked)?);
            }
        }
        Ok(over_seeds(short(variant), &curves))
    }
}

fn short(variant: Variant) -> &'static str {
    if variant == CaptionTdd { "TDD" } else { "MDD" }
}

fn panels(variant: Variant, picked: &[&Story]) -> Result<Shown> {
    let name = short(variant);
    Ok(Shown {
        name: format!("trajectory-{}", name.to_lowercase()),
        caption: match variant {
            CaptionTdd => {
                "TDD: the words that the network would choose at each step, from pure noise (top) to the caption \
                           (bottom). Words that are not yet those of the caption are grey."
                    .into()
            }
            _ => "MDD, images chosen by the same rule: the words revealed so far; · is still masked.".to_string(),
        },
        drawing: Figure::panels(&PanelsSpec {
            title: format!("How captions come about: {name}"),
            columns: 1,
            panels: picked.iter().map(|s| panel(s)).collect(),
            width: Some(600.0),
            side: Some(110.0),
        })?,
    })
}

/// Share of places with their final word at every step, in percent, over all images.
fn final_words(stories: &[Story]) -> Vec<f64> {
    let steps = stories.iter().map(|s| s.steps.len()).min().unwrap_or(0);
    let at = |i: usize| {
        let (mut same, mut all) = (0_usize, 0_usize);
        for s in stories {
            let (n, last) = (s.length, s.steps.len() - 1);
            let pairs = s.steps[i].tokens[..n].iter().zip(&s.steps[last].tokens[..n]);
            same += pairs.filter(|(a, b)| a.text == b.text).count();
            all += n;
        }
        100.0 * same as f64 / all.max(1) as f64
    };
    (0..steps).map(at).collect()
}

fn entropy(stories: &[Story], step: usize) -> f64 {
    let all = stories.iter().flat_map(|s| s.steps[step].tokens[..s.length].iter().map(|t| t.entropy));
    mean(&all.collect::<Vec<_>>())
}

/// How often words of a caption changed.
fn changes(s: &Story) -> usize {
    let n = s.length;
    let between = |w: &[Step]| w[0].tokens[..n].iter().zip(&w[1].tokens[..n]).filter(|(a, b)| a.text != b.text).count();
    s.steps.windows(2).map(between).sum()
}

fn pick(stories: &[Story]) -> Vec<&Story> {
    let (first, rest) = stories.split_at(SHOWN.0.min(stories.len()));
    let mut rest: Vec<&Story> = rest.iter().collect();
    rest.sort_by_key(|s| std::cmp::Reverse(changes(s)));
    first.iter().chain(rest.into_iter().take(SHOWN.1)).collect()
}

/// What a token looks like: nothing readable while masked.
fn word(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| "·".into())
}

/// Words of a step up to the end of the final caption, each with whether it is the final one.
fn words(s: &Story, step: &Step) -> Vec<(String, bool)> {
    let Some(last) = s.steps.last() else { return Vec::new() };
    // The end mark itself is not a word of the final caption.
    let n = s.length.saturating_sub(1).max(1);
    step.tokens[..n].iter().zip(&last.tokens).map(|(a, b)| (word(&a.text), a.text == b.text)).collect()
}

fn told(variant: Variant, s: &Story) -> Vec<Vec<Value>> {
    let row = |(i, step): (usize, &Step)| {
        let text: Vec<String> = words(s, step).into_iter().map(|w| w.0).collect();
        vec![
            json!(variant.id()),
            json!(s.index),
            json!(i + 1),
            json!(step.t),
            json!(step.alpha_bar),
            json!(text.join(" ")),
            json!(s.text),
            json!(s.references.join(" | ")),
        ]
    };
    s.steps.iter().enumerate().map(row).collect()
}

/// Steps to draw: all, or some at equal distances with the first and the last.
fn drawn(steps: usize) -> Vec<usize> {
    match steps <= MOST_STEPS {
        true => (0..steps).collect(),
        false => (0..MOST_STEPS).map(|k| (k * (steps - 1) + (MOST_STEPS - 1) / 2) / (MOST_STEPS - 1)).collect(),
    }
}

fn panel(s: &Story) -> Panel {
    let tone = |is_final: bool| if is_final { Tone::Plain } else { Tone::Faint };
    // Where words are committed one after the other, the others stay at one time.
    let moves = s.steps.first().map(|s| s.t) != s.steps.last().map(|s| s.t);
    let line = |i: usize| PanelLine {
        label: if moves { format!("t = {}", s.steps[i].t) } else { format!("step {}", i + 1) },
        words: words(s, &s.steps[i]).into_iter().map(|(w, same)| (w, tone(same))).collect(),
    };
    let mut lines: Vec<PanelLine> = drawn(s.steps.len()).into_iter().map(line).collect();
    let truth = s.references.first().map_or("", String::as_str);
    lines.push(PanelLine::new("truth", truth, Tone::Right));
    Panel { picture: s.picture.clone(), lines }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tweedie::generate::Token;
    use tweedie_figures::Picture;

    /// A story from words, a string per step; / ends it.
    pub fn story(steps: &[&str]) -> Story {
        let token = |w: &str| Token { text: (w != "·").then(|| w.to_string()), p: 1.0, entropy: 0.0, top: Vec::new() };
        let step = |(i, text): (usize, &&str)| Step {
            t: steps.len() - i,
            alpha_bar: 0.5,
            tokens: text.split(' ').map(token).collect(),
        };
        let length = steps.last().and_then(|s| s.split(' ').position(|w| w == "/")).map_or(1, |end| end + 1);
        let steps = steps.iter().enumerate().map(step).collect();
        Story {
            index: 0,
            picture: Picture::default(),
            references: vec!["r".into()],
            text: String::new(),
            steps,
            length,
        }
    }

    #[test]
    fn settling_by_hand() {
        let s = story(&["x dog / x", "a dog / x", "a cat / /"]);
        // Two words and an end; the last place is padding and never counts.
        assert_eq!((s.length, changes(&s)), (3, 2));
        let curve = final_words(&[s]);
        assert!((curve[0] - 100.0 / 3.0).abs() < 1e-9 && (curve[1] - 200.0 / 3.0).abs() < 1e-9 && curve[2] == 100.0);
        let masked = story(&["· dog /", "a dog /"]);
        assert_eq!(words(&masked, &masked.steps[0]), [("·".to_string(), false), ("dog".to_string(), true)]);
    }

    #[test]
    fn steps_are_named_by_time_where_it_moves() {
        let label = |s: &Story| panel(s).lines[1].label.clone();
        let mut s = story(&["x dog /", "a dog /", "a cat /"]);
        assert_eq!(label(&s), "t = 2");
        s.steps.iter_mut().for_each(|s| s.t = 1000);
        assert_eq!(label(&s), "step 2");
    }

    #[test]
    fn drawn_steps_begin_and_end_with_the_walk() {
        assert_eq!(drawn(3), [0, 1, 2]);
        let some = drawn(50);
        assert!(some.len() == MOST_STEPS && some[0] == 0 && some[MOST_STEPS - 1] == 49);
        assert!(some.windows(2).all(|w| w[0] < w[1]));
    }
}
