//! One figure of every kind with data such as the commands make. To look at them:
//! `cargo test -p tweedie-figures demo` writes them to `target/figures-demo`.

use std::fs;
use std::path::Path;

use super::*;

/// Numbers that look random and are the same everywhere.
pub struct Noise(u64);

impl Noise {
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

pub fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| n.to_string()).collect()
}

const CIFAR: [&str; 10] = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

fn training() -> LinesSpec {
    let mut noise = Noise(1);
    let mut curve = |name: &str, end: f64, rate: f64, spread: f64| {
        let x: Vec<f64> = (1..=3000).map(|i| f64::from(i) * 100.0).collect();
        let y = x.iter().map(|x| end + 2.2 * (-x / rate).exp() + 0.2 * (1e3 / x).min(1.0));
        Series::new(name, x.clone(), y.map(|y| y * (spread * noise.normal()).exp()).collect()).averaged(100)
    };
    LinesSpec {
        title: "Training loss on CIFAR-10".into(),
        x: Axis::linear("Step"),
        y: Axis::log("Cross-entropy (nats)"),
        series: vec![
            curve("TDD, training", 0.08, 4e4, 0.08),
            curve("TDD, validation", 0.19, 4e4, 0.015),
            curve("MDD, training", 0.11, 6e4, 0.08),
            curve("MDD, validation", 0.24, 6e4, 0.015),
        ],
        size: None,
    }
}

fn raw() -> LinesSpec {
    let mut noise = Noise(2);
    let x: Vec<f64> = (1..=20_000).map(f64::from).collect();
    let mut curve = |name: &str, by: f64| {
        Series::new(
            name,
            x.clone(),
            x.iter().map(|x| by * (1.0 + x / 4000.0).ln() * (0.1 * noise.normal()).exp()).collect(),
        )
    };
    let series = vec![curve("weights of the encoder", 1.0), curve("weights of the denoiser", 1.6)];
    LinesSpec {
        title: "Gradient norm".into(),
        x: Axis::linear("Step"),
        y: Axis::linear("‖g‖₂ (10⁻³)"),
        series,
        size: Some((252.0, 180.0)),
    }
}

fn steps() -> LinesSpec {
    let x = vec![1.0_f64, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
    let curve = |name: &str, end: f64, start: f64, spread: f64| {
        let y: Vec<f64> = x.iter().map(|x| end - (end - start) / x.powf(0.9)).collect();
        let s: Vec<f64> = x.iter().map(|x| spread * (1.0 + 2.0 / x)).collect();
        Series::new(name, x.clone(), y).spread(&s)
    };
    LinesSpec {
        title: "Accuracy over sampling steps (mean ± s.d. of 5 seeds)".into(),
        x: Axis::log("Sampling steps"),
        y: Axis::linear("Top-1 accuracy (%)"),
        series: vec![
            curve("DDIM", 95.1, 93.2, 0.15),
            curve("Ancestral, ᾱ cosine", 94.9, 91.0, 0.2),
            curve("Multinomial, β ≥ 10⁻⁴", 94.2, 90.1, 0.3),
        ],
        size: None,
    }
}

fn methods() -> BarsSpec {
    let series = |name: &str, values: [f64; 4], errors: [f64; 4]| BarSeries {
        name: name.into(),
        values: values.to_vec(),
        errors: Some(errors.to_vec()),
    };
    BarsSpec {
        title: "TDD against MDD (mean ± s.d. of 5 seeds)".into(),
        x_label: "Data set".into(),
        y: Axis::linear("Top-1 accuracy (%)"),
        categories: names(&["MNIST", "CIFAR-10", "CIFAR-100", "ImageNet-1k, 64\u{a0}×\u{a0}64"]),
        series: vec![
            series("TDD", [99.4, 95.1, 77.9, 62.3], [0.05, 0.2, 0.4, 0.9]),
            series("MDD", [99.3, 94.2, 76.0, 58.1], [0.06, 0.3, 0.6, 1.4]),
        ],
        decimals: Some(1),
        size: None,
    }
}

fn distribution() -> HeatmapSpec {
    let mut noise = Noise(3);
    let rows = 25;
    let mut values = Vec::new();
    let logits: Vec<f64> = (0..10)
        .map(|c| {
            if c == 3 {
                3.0
            } else if c == 5 {
                2.2
            } else {
                0.4 * noise.normal()
            }
        })
        .collect();
    for r in 0..rows {
        let sharp = f64::from(r) / 6.0;
        let e: Vec<f64> = logits.iter().map(|l| (l * sharp + 0.25 * noise.normal()).exp()).collect();
        let sum: f64 = e.iter().sum();
        values.extend(e.iter().map(|v| v / sum));
    }
    HeatmapSpec {
        title: "Output distribution while sampling".into(),
        y_label: "Timestep t".into(),
        rows: (0..rows).map(|r| (1000 - 40 * r).to_string()).collect(),
        x_label: "Class".into(),
        columns: names(&CIFAR),
        values,
        colour: Axis::linear("Probability").range(0.0, 1.0),
        size: None,
    }
}

fn vocabulary() -> HeatmapSpec {
    let (rows, columns) = (50, 200);
    let value = |i: usize| {
        let (r, c) = ((i / columns) as f64 / 50.0, (i % columns) as f64 / 200.0);
        10f64.powf(-6.0 + 6.0 * r * (-40.0 * (c - 0.3 - 0.2 * (6.0 * r).sin()).powi(2)).exp())
    };
    HeatmapSpec {
        title: "Token probabilities".into(),
        y_label: "Step".into(),
        rows: (1..=rows).map(|r| r.to_string()).collect(),
        x_label: "Token".into(),
        columns: (0..columns).map(|c| c.to_string()).collect(),
        values: (0..rows * columns).map(value).collect(),
        colour: Axis::log("Probability"),
        size: None,
    }
}

fn confusion(classes: usize) -> ConfusionSpec {
    let mut noise = Noise(4);
    let counts = (0..classes * classes).map(|i| {
        let (t, p) = (i / classes, i % classes);
        let near = 30.0 * (-(t as f64 - p as f64).abs() / 1.5).exp() * noise.uniform();
        if t == p { 880 + (100.0 * noise.uniform()) as u64 } else { near as u64 }
    });
    let class = |c: usize| if classes == 10 { CIFAR[c].to_string() } else { format!("class number {c}") };
    ConfusionSpec {
        title: format!("Confusion matrix, CIFAR-{classes} test set"),
        classes: (0..classes).map(class).collect(),
        counts: counts.collect(),
        width: None,
    }
}

fn reliability() -> ReliabilitySpec {
    let counts = [0, 3, 18, 55, 120, 190, 260, 410, 1100, 7844];
    let bin = |i: usize| {
        let confidence = (i as f64 + 0.55) / 10.0;
        let accuracy = (confidence - 0.09 * (confidence * 3.1).sin() + if i == 2 { 0.12 } else { 0.0 }).max(0.0);
        Bin { low: i as f64 / 10.0, high: (i + 1) as f64 / 10.0, confidence, accuracy, count: counts[i] }
    };
    ReliabilitySpec { title: "Calibration of TDD on CIFAR-10".into(), bins: (0..10).map(bin).collect(), width: None }
}

fn tiles() -> TilesSpec {
    let mut noise = Noise(5);
    let tile = |i: usize| {
        let colour = i % 3 == 2;
        let (side, channels) = if colour { (32, 3) } else { (28, 1) };
        let pixel = |p: usize| {
            let (x, y) =
                ((p / channels % side) as f64 / side as f64 - 0.5, (p / channels / side) as f64 / side as f64 - 0.5);
            let ring = ((x * x + y * y).sqrt() - 0.1 - 0.02 * i as f64).abs();
            let shade = (1.0 - 9.0 * ring).clamp(0.0, 1.0) * (1.0 - 0.3 * (p % channels) as f64);
            (255.0 * (shade + 0.06 * noise.uniform()).clamp(0.0, 1.0)) as u8
        };
        let pixels = (0..side * side * channels).map(pixel).collect();
        let right = i != 4 && i != 9;
        let caption = match (right, colour) {
            (true, true) => "automobile 97\u{a0}%".into(),
            (true, false) => format!("{}, 99\u{a0}%", i % 10),
            (false, _) => format!("{}, 54\u{a0}% (is\u{a0}{})", (i + 3) % 10, i % 10),
        };
        Tile { picture: Picture { width: side, height: side, channels, pixels }, caption, right: Some(right) }
    };
    TilesSpec {
        title: "Samples with predictions".into(),
        columns: 6,
        lines: 0,
        tiles: (0..12).map(tile).collect(),
        width: None,
    }
}

/// Every kind, with a file name.
pub fn all() -> Vec<(&'static str, Drawing)> {
    let drawings = [
        ("training", Figure::lines(&training())),
        ("raw", Figure::lines(&raw())),
        ("steps", Figure::lines(&steps())),
        ("methods", Figure::bars(&methods())),
        (
            "methods-cut",
            Figure::bars(&BarsSpec { y: Axis::linear("Top-1 accuracy (%)").range(50.0, 102.0), ..methods() }),
        ),
        ("distribution", Figure::heatmap(&distribution())),
        ("vocabulary", Figure::heatmap(&vocabulary())),
        ("confusion", Figure::confusion(&confusion(10))),
        ("confusion-100", Figure::confusion(&confusion(100))),
        ("reliability", Figure::reliability(&reliability())),
        ("tiles", Figure::tiles(&tiles())),
    ];
    drawings.into_iter().map(|(name, d)| (name, d.unwrap())).collect()
}

#[test]
fn every_kind_has_both_forms() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/figures-demo");
    fs::create_dir_all(&dir).unwrap();
    for (name, drawing) in all() {
        fs::write(dir.join(format!("{name}.svg")), drawing.svg()).unwrap();
        fs::write(dir.join(format!("{name}.png")), drawing.png(PRINT_SCALE).unwrap()).unwrap();
    }
}
