//! The ablation table: loss, guidance, coefficients, sampler.

use tweedie::config::{GuidanceShape, SampleConfig, SamplerKind};
use tweedie_figures::{Axis, BarSeries, BarsSpec, Drawing, Figure};

use super::super::caption_measurements::Score;
use super::super::measurements::{Measurements, Readout, Summary};
use super::super::regression::Rule;
use super::super::section::{Claim, Paper, Row, Section, Shown};
use super::super::variant::LAMBDA;
use super::super::variant::Variant::{self, LambdaHot, Noise, Plain, Weighted, X0};
use super::history::History;
use super::sampling_name;
use crate::failure::Result;

pub const NEEDS: &[Variant] = &[Weighted, Plain, Noise, X0, LambdaHot];

const LOSS: &str = "loss";
const GUIDANCE: &str = "guidance";
const COEFFICIENTS: &str = "coefficients";
const SAMPLER: &str = "sampler";
const LAMBDA_HOT: &str = "λ-hot";

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let results = measure(measured)?;
    let loss = lambda_loss(measured)?;
    let chance = 100.0 / measured.plan.classes()?.data[0].class_names.len().max(1) as f64;
    Ok(Section {
        id: "ablation",
        title: "What each part is good for".into(),
        of: "ablation table",
        text: vec![
            format!(
                "The paper's regression loss predicts the noise and ends near chance (0.13 % of a thousand classes). It does \
                 not say how that network's output became a class, so both readings are here: as logits, as if only the \
                 loss had changed, and turned into the clean vector that the noise implies, as in other diffusions. Since \
                 ε̂ = (y_t − √ᾱ_t·λ·x̂0) / σ_t, the class that the network believes in is where the noise is least, so that \
                 reading it as logits can fall below chance, which is {chance:.0} % here. Regression is sampled without \
                 guidance, which is about logits."
            ),
            "The paper's rows of the first block are of epoch 400, the others of epoch 500; all of ours are of the last epoch. \
             With and without guidance is a choice of the sampler: one and the same network, trained with dropped conditions."
                .into(),
            format!(
                "The paper’s appendix describes its second way of sampling as a draw from the softmax (torch.multinomial), so its \
                 row “sampling with softmax” stands beside multinomial here; feeding the distribution itself back is a third. Linear \
                 guidance grows from nearly none to the full weight. λ-hot vectors have λ = {LAMBDA}; the paper gives no value, and finds \
                 a lower training loss at the same accuracy."
            ),
        ],
        grids: Vec::new(),
        claims: claims(&results).into_iter().chain([loss]).collect(),
        figures: vec![Shown {
            name: "ablation".into(),
            caption: "The rows of the table with one standard error (test images and, where there are several, seeds).".into(),
            drawing: bars(&results)?,
        }],
        data: Vec::new(),
        results,
    })
}

fn measure(measured: &mut Measurements) -> Result<Vec<Row>> {
    let guided = measured.sampling()?;
    let free = SampleConfig { guidance: 1.0, ..guided.clone() };
    let soft = SampleConfig { sampler: SamplerKind::Softmax, ..guided.clone() };
    let drawn = SampleConfig { sampler: SamplerKind::Multinomial, ..guided.clone() };
    let linear = SampleConfig { guidance_shape: GuidanceShape::Linear, ..guided.clone() };
    let one = SampleConfig { steps: 1, ..free.clone() };
    use Readout::{Clean, Logits};
    // Block, name, what was trained, how it is sampled and read, the paper's number.
    let table = [
        (LOSS, "regression of the noise, output read as logits", Noise, &free, Logits, Some("0.13")),
        (LOSS, "regression of the noise, output turned into x0", Noise, &free, Clean(Rule::Renoise), None),
        (LOSS, "regression of x0", X0, &free, Clean(Rule::Renoise), None),
        (LOSS, "regression of x0", X0, &one, Clean(Rule::Renoise), None),
        (LOSS, "cross-entropy", Weighted, &guided, Logits, Some("82.72")),
        (GUIDANCE, "without guidance", Weighted, &free, Logits, Some("82.36")),
        (GUIDANCE, "with guidance", Weighted, &guided, Logits, Some("82.82")),
        (GUIDANCE, "with linear guidance", Weighted, &linear, Logits, None),
        (COEFFICIENTS, "with coefficients", Weighted, &guided, Logits, Some("82.82")),
        (COEFFICIENTS, "without coefficients", Plain, &guided, Logits, Some("82.96")),
        (SAMPLER, "multinomial (“softmax” of the paper's table)", Weighted, &drawn, Logits, Some("82.35")),
        (SAMPLER, "softmax, the distribution itself", Weighted, &soft, Logits, None),
        (SAMPLER, "argmax", Weighted, &guided, Logits, Some("82.82")),
        (LAMBDA_HOT, "one-hot, without coefficients", Plain, &guided, Logits, None),
        (LAMBDA_HOT, "λ-hot, without coefficients", LambdaHot, &guided, Logits, None),
    ];
    let mut results = Vec::new();
    for (block, name, variant, sample, readout, paper) in table {
        let ours = measured.score(variant, sample, readout)?;
        results.push(Row { block, name: name.into(), sampling: sampling_name(sample), paper, ours });
    }
    Ok(results)
}

/// That λ-hot vectors have the lower training loss: means over the last tenth of the run.
fn lambda_loss(measured: &Measurements) -> Result<Claim> {
    let at_end = |variant: Variant| -> Result<Vec<Vec<f64>>> {
        let h = History::read(measured, variant, "step", "step", |m| m["loss"].as_f64())?;
        Ok(h.seeds.iter().map(|s| s[s.len() - s.len().div_ceil(10)..].to_vec()).collect())
    };
    let (one, lambda) = (Score::of(&at_end(Plain)?), Score::of(&at_end(LambdaHot)?));
    Ok(Claim {
        what: format!("λ-hot has the lower training loss (one-hot {:.3}, λ-hot {:.3})", one.mean(), lambda.mean()),
        paper: Paper::Above,
        ours: one.mean() - lambda.mean(),
        error: one.uncertainty().hypot(lambda.uncertainty()),
    })
}

fn claims(results: &[Row]) -> Vec<Claim> {
    let of = |block: &str, name: &str| -> &Summary {
        results.iter().find(|r| r.block == block && r.name.starts_with(name)).map_or(&results[0].ours, |r| &r.ours)
    };
    let ce = of(LOSS, "cross-entropy");
    let logits = of(LOSS, "regression of the noise, output read");
    vec![
        Claim::new("cross-entropy above regression of the noise read as logits", Paper::By(82.72 - 0.13), ce, logits),
        Claim::new("guidance helps", Paper::By(82.82 - 82.36), of(GUIDANCE, "with g"), of(GUIDANCE, "without")),
        Claim::new(
            "coefficients cost a little",
            Paper::By(82.96 - 82.82),
            of(COEFFICIENTS, "without"),
            of(COEFFICIENTS, "with c"),
        ),
        Claim::new(
            "argmax above multinomial",
            Paper::By(82.82 - 82.35),
            of(SAMPLER, "argmax"),
            of(SAMPLER, "multinomial"),
        ),
        Claim::new("linear guidance above constant", Paper::Silent, of(GUIDANCE, "with l"), of(GUIDANCE, "with g")),
        Claim::new("λ-hot more accurate", Paper::Same, of(LAMBDA_HOT, "λ"), of(LAMBDA_HOT, "one")),
    ]
}

fn bars(results: &[Row]) -> Result<Drawing> {
    let shown = |r: &&Row| !(r.block == LOSS && r.sampling.starts_with("1 step"));
    let rows: Vec<&Row> = results.iter().filter(shown).collect();
    Ok(Figure::bars(&BarsSpec {
        title: "Ablation: regression of noise and of x0, cross-entropy and its settings".into(),
        y: Axis::linear("top-1 on the test images (%)").range(0.0, 110.0),
        categories: rows.iter().map(|r| short(r)).collect(),
        series: vec![BarSeries {
            name: String::new(),
            values: rows.iter().map(|r| r.ours.mean()).collect(),
            errors: Some(rows.iter().map(|r| r.ours.uncertainty()).collect()),
        }],
        decimals: Some(1),
        size: Some((640.0, 300.0)),
        ..BarsSpec::default()
    })?)
}

/// A name that fits below a bar.
fn short(r: &Row) -> String {
    match r.name.as_str() {
        "regression of the noise, output read as logits" => "noise as logits".into(),
        "regression of the noise, output turned into x0" => "noise as x0".into(),
        "regression of x0" => "x0".into(),
        name if r.block == LAMBDA_HOT => name.split(',').next().unwrap_or(name).into(),
        name if r.block == SAMPLER => name.split([' ', ',']).next().unwrap_or(name).into(),
        name => name.into(),
    }
}
