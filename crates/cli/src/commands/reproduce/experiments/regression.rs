//! Networks trained by regression over sampling steps, beside cross-entropy.

use serde_json::{Value, json};
use tweedie::config::SampleConfig;
use tweedie_figures::{Axis, Figure, LinesSpec, Series};

use super::super::measurements::{Measurements, Readout, Summary};
use super::super::regression::Rule;
use super::super::section::{Claim, Data, Grid, Paper, Section, Shown, with_spread};
use super::super::variant::Variant::{self, Noise, Plain, X0};
use crate::failure::Result;
use crate::report::Align;

pub const NEEDS: &[Variant] = &[Plain, Noise, X0];

const STEPS: [usize; 5] = [1, 2, 5, 20, 50];
/// Where 20 steps stand.
const TWENTY: usize = 3;

/// One way to read and sample one network.
struct Line {
    name: String,
    variant: Variant,
    scores: Vec<Summary>,
}

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let guided = measured.sampling()?;
    let w = guided.guidance;
    let mut ways = vec![(Plain, Readout::Logits, 1.0), (Plain, Readout::Logits, w)];
    for variant in [Noise, X0] {
        ways.extend([Rule::Renoise, Rule::Ddpm, Rule::Ddim].map(|rule| (variant, Readout::Clean(rule), 1.0)));
        ways.push((variant, Readout::Clean(Rule::Ddim), w));
    }
    let mut lines = Vec::new();
    for (variant, readout, guidance) in ways {
        let of = |steps: usize| SampleConfig { steps, guidance, ..guided.clone() };
        let scores =
            STEPS.map(|steps| measured.score(variant, &of(steps), readout)).into_iter().collect::<Result<_>>()?;
        lines.push(Line { name: name(variant, readout, guidance), variant, scores });
    }
    let best = |variant: Variant| {
        let of = lines.iter().filter(|l| l.variant == variant).map(|l| &l.scores[TWENTY]);
        of.max_by(|a, b| a.mean().total_cmp(&b.mean()))
    };
    let mut claims = Vec::new();
    for (variant, what) in [(Noise, "regression of the noise at its best"), (X0, "regression of x0 at its best")] {
        if let (Some(ce), Some(other)) = (best(Plain), best(variant)) {
            claims.push(Claim::new(&format!("cross-entropy above {what}, 20 steps"), Paper::Above, ce, other));
        }
    }
    let series = |l: &Line| {
        let x = STEPS.iter().map(|s| *s as f64).collect();
        Series::new(&l.name, x, l.scores.iter().map(Summary::mean).collect())
    };
    let drawing = Figure::lines(&LinesSpec {
        title: "Regression over sampling steps".into(),
        x: Axis::log("sampling steps"),
        y: Axis::linear("top-1 on the test images (%)"),
        series: lines.iter().map(series).collect(),
        size: Some((460.0, 300.0)),
    })?;
    Ok(Section {
        id: "regression",
        title: "Regression over sampling steps".into(),
        of: "figure of MSE and cross-entropy",
        text: vec![
            "The paper’s regression is at chance (0.13 %) and it does not say how its output is read. Here it is turned into the clean \
             vector that it implies, x̂0, and sampled by three rules: one-hot of the largest entry and noise again (the paper’s sampler), \
             the reverse step of DDPM, and DDIM. x̂0 is cut to ±1 in the last two, as DDPM does. Guidance acts on the network’s output, ε̂ or x̂0."
                .into(),
        ],
        grids: vec![grid(&lines)],
        claims,
        figures: vec![Shown {
            name: "regression".into(),
            caption: "Top-1 over the number of sampling steps; cross-entropy without coefficients.".into(),
            drawing,
        }],
        data: vec![data(&lines)],
        ..Section::default()
    })
}

fn name(variant: Variant, readout: Readout, guidance: f32) -> String {
    let (what, output) = match variant {
        Noise => ("noise", "ε̂"),
        X0 => ("x0", "x̂0"),
        _ => ("cross-entropy", "logits"),
    };
    let rule = match readout {
        Readout::Logits => "argmax",
        Readout::Clean(rule) => rule.name(),
    };
    match guidance == 1.0 {
        true => format!("{what}, {rule}"),
        false => format!("{what}, {rule}, guidance {guidance} on {output}"),
    }
}

fn grid(lines: &[Line]) -> Grid {
    let steps = STEPS.iter().map(|s| (if *s == 1 { "1 step".into() } else { format!("{s} steps") }, Align::Right));
    let row =
        |l: &Line| -> Vec<String> { std::iter::once(l.name.clone()).chain(l.scores.iter().map(with_spread)).collect() };
    Grid {
        columns: std::iter::once(("top-1 %".to_string(), Align::Left)).chain(steps).collect(),
        rows: lines.iter().map(row).collect(),
    }
}

fn data(lines: &[Line]) -> Data {
    let rows = |l: &Line| -> Vec<Vec<Value>> {
        let of = |(steps, s): (&usize, &Summary)| {
            vec![
                json!(l.variant.id()),
                json!(l.name),
                json!(steps),
                json!(s.mean()),
                json!(s.deviation()),
                json!(s.standard_error()),
            ]
        };
        STEPS.iter().zip(&l.scores).map(of).collect()
    };
    Data {
        name: "regression".into(),
        columns: vec!["variant", "reading", "steps", "top1", "deviation_over_seeds", "standard_error_of_test_set"],
        rows: lines.iter().flat_map(rows).collect(),
    }
}
