//! What holds for every figure: no text on text, none off the page, legends clear of data, two forms of one picture,
//! and a clear error for data that cannot be drawn.

use super::axes::Scale;
use super::demo::{self, names};
use super::font::{self, CAP, DESCENT};
use super::lines::Band;
use super::scene::{Anchor, Point, Shape, Text};
use super::*;

/// The corners of the ink of a text: from a little below the baseline to the height of capitals.
fn corners(t: &Text) -> [Point; 4] {
    let (left, right) = (-t.shift(), font::width(&t.text, t.size) - t.shift());
    let deep = t.text.contains(|c| "gjpqy(),;Q".contains(c));
    let (top, bottom) = (-CAP * t.size, if deep { DESCENT * t.size } else { 0.0 });
    let (sin, cos) = t.angle.to_radians().sin_cos();
    [(left, top), (right, top), (right, bottom), (left, bottom)]
        .map(|(x, y)| (t.at.0 + x * cos - y * sin, t.at.1 + x * sin + y * cos))
}

/// Whether two rectangles, turned or not, share area: no edge's direction separates them.
fn overlap(a: &[Point; 4], b: &[Point; 4]) -> bool {
    let separated = |(dx, dy): Point| {
        let range = |r: &[Point; 4]| {
            let along = r.map(|p| p.0 * dx + p.1 * dy);
            (along.iter().fold(f64::INFINITY, |m, v| m.min(*v)), along.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v)))
        };
        let ((a0, a1), (b0, b1)) = (range(a), range(b));
        a1 <= b0 + 1e-9 || b1 <= a0 + 1e-9
    };
    let edges = |r: &[Point; 4]| [(r[1].0 - r[0].0, r[1].1 - r[0].1), (r[2].0 - r[1].0, r[2].1 - r[1].1)];
    !edges(a).into_iter().chain(edges(b)).any(separated)
}

fn texts(d: &Drawing) -> Vec<&Text> {
    d.shapes.iter().filter_map(|s| if let Shape::Text(t) = s { Some(t) } else { None }).collect()
}

fn check_layout(name: &str, d: &Drawing) {
    let texts = texts(d);
    let boxes: Vec<[Point; 4]> = texts.iter().map(|t| corners(t)).collect();
    for (i, a) in boxes.iter().enumerate() {
        for p in a {
            let inside = p.0 >= 0.0 && p.0 <= d.width && p.1 >= 0.0 && p.1 <= d.height;
            assert!(inside, "{name}: '{}' is cut at {p:?} of {} × {}", texts[i].text, d.width, d.height);
        }
        for (j, b) in boxes.iter().enumerate().skip(i + 1) {
            assert!(!overlap(a, b), "{name}: '{}' {a:?} covers '{}' {b:?}", texts[i].text, texts[j].text);
        }
    }
}

fn check_forms(name: &str, d: &Drawing) {
    let svg = d.svg();
    let xml = roxmltree::Document::parse(&svg).unwrap_or_else(|e| panic!("{name}: {e}"));
    let root = xml.root_element();
    assert_eq!(root.tag_name().name(), "svg");
    assert_eq!(root.attribute("aria-label"), Some(font::clean(&d.title).as_str()));
    let spoken: Vec<&str> = root.children().filter_map(|n| n.attribute("aria-label")).collect();
    assert_eq!(spoken, texts(d).iter().map(|t| t.text.as_str()).collect::<Vec<_>>());
    assert!(xml.descendants().all(|n| n.attribute("id").is_none()), "ids would clash in a page");
    // An embedded picture is base64, which may spell anything.
    let numbers: String = svg.split('"').filter(|part| !part.starts_with("data:")).collect();
    assert!(!numbers.contains("NaN") && !numbers.contains("inf "), "{name}");

    let png = d.png(1.5).unwrap();
    let mut reader = ::png::Decoder::new(std::io::Cursor::new(&png)).read_info().unwrap();
    let size = (reader.info().width, reader.info().height);
    assert_eq!(size, ((d.width * 1.5).round() as u32, (d.height * 1.5).round() as u32));
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    assert!(pixels.contains(&255) && pixels.iter().any(|p| *p < 64), "{name}: neither paper nor ink");
}

#[test]
fn the_demonstration_is_laid_out() {
    for (name, d) in demo::all() {
        check_layout(name, &d);
        check_forms(name, &d);
    }
}

fn lines(series: Vec<Series>) -> LinesSpec {
    LinesSpec { title: "t".into(), x: Axis::linear("x"), y: Axis::linear("y"), series, size: None }
}

#[test]
fn awkward_lines_are_laid_out() {
    let long = "An exceedingly long label that goes on & on <without> any \"end\" in sight (furlongs per fortnight)";
    let ramp = |n: usize, by: f64| (0..n).map(|i| i as f64 * by).collect::<Vec<_>>();
    let s = |x: Vec<f64>, y: Vec<f64>| vec![Series::new("s", x, y)];
    let nan = f64::NAN;
    let mut cases = vec![
        ("one point", lines(s(vec![3.0], vec![0.5]))),
        ("zero", lines(s(vec![0.0], vec![0.0]))),
        ("constant", lines(s(ramp(50, 1.0), vec![0.125; 50]))),
        ("constant up to rounding", lines(s(ramp(3, 1.0), vec![0.1 + 0.2, 0.3, 0.3]))),
        ("gaps", lines(s(ramp(6, 1.0), vec![nan, 1.0, nan, 2.0, 3.0, f64::INFINITY]))),
        ("large", lines(s(ramp(4, 1e12), vec![-1e200, 1e250, 0.0, 1.0]))),
        ("small", lines(s(ramp(4, 1e-12), vec![1e-200, 2e-200, 0.0, 1e-201]))),
        ("close", lines(s(vec![1e6, 1e6 + 1.0], vec![100.001, 100.002]))),
        ("no name", lines(vec![Series::new("", ramp(9, 1.0), ramp(9, 1.0))])),
    ];
    let mut log = lines(s(vec![0.0, 1.0, 10.0], vec![-1.0, 0.0, 5.0]));
    (log.x.scale, log.y.scale) = (Scale::Log, Scale::Log);
    cases.push(("one point of a logarithm", log));
    let mut log = lines(s(ramp(40, 1.0), (0..40).map(|i| 10f64.powi(i - 20)).collect()));
    log.y.scale = Scale::Log;
    cases.push(("forty decades", log));
    let mut band = lines(vec![Series::new("wide", ramp(9, 1.0), vec![1.0; 9]).spread(&[5.0; 9])]);
    band.y.scale = Scale::Log;
    cases.push(("a band below zero", band));
    let mut cut = lines(s(ramp(9, 1.0), ramp(9, 1.0)));
    (cut.x.range, cut.y.range) = (Some((2.0, 4.5)), Some((3.0, 1e5)));
    cases.push(("cut", cut));
    let many: Vec<Series> =
        (0..13).map(|i| Series::new(format!("{long} {i}"), ramp(30, 1.0), ramp(30, i as f64))).collect();
    let mut all_long = lines(many);
    (all_long.title, all_long.x.label, all_long.y.label) = (long.repeat(4), long.repeat(2), long.repeat(2));
    all_long.size = Some((360.0, 420.0));
    cases.push(("long", all_long));
    let mut tight = lines(s(ramp(5, 25_000.0), ramp(5, 0.001)));
    tight.size = Some((130.0, 110.0));
    cases.push(("tight", tight));
    for (name, spec) in cases {
        let d = Figure::lines(&spec).unwrap_or_else(|e| panic!("{name}: {e}"));
        check_layout(name, &d);
        check_forms(name, &d);
    }
}

/// The length of a bar that does not begin at zero says nothing: a dot does not claim to have one.
#[test]
fn bars_that_would_not_begin_at_zero_are_dots() {
    let areas = |range: (f64, f64)| {
        let series = vec![BarSeries { name: "s".into(), values: vec![97.0, 98.0], errors: Some(vec![0.5, 0.5]) }];
        let y = Axis::linear("y").range(range.0, range.1);
        let d = Figure::bars(&BarsSpec { y, categories: vec!["a".into(), "b".into()], series, ..BarsSpec::default() });
        let d = d.unwrap();
        check_layout("dots", &d);
        let filled =
            |s: &Shape| matches!(s, Shape::Path(p, paint) if paint.fill == Some(palette::colour(0)) && p.len() == 5);
        d.shapes.iter().filter(|s| filled(s)).count()
    };
    assert_eq!((areas((0.0, 100.0)), areas((90.0, 100.0))), (3, 0)); // two bars and that of the legend
}

#[test]
fn stacked_figures_are_one_picture() {
    let one = |y: f64| Figure::lines(&lines(vec![Series::new("s", vec![0.0, 1.0], vec![0.0, y])])).unwrap();
    let both = Drawing::stacked("both", vec![one(1.0), one(9.0)]);
    assert_eq!((both.width, both.height), (one(1.0).width, 2.0 * one(1.0).height));
    assert_eq!(texts(&both).len(), texts(&one(1.0)).len() + texts(&one(9.0)).len());
    check_layout("stacked", &both);
    check_forms("stacked", &both);
}

#[test]
fn a_legend_keeps_clear_of_data() {
    let x: Vec<f64> = (0..100).map(f64::from).collect();
    let place = |y: fn(f64) -> f64| {
        let d = Figure::lines(&lines(vec![Series::new("name", x.clone(), x.iter().map(|x| y(*x)).collect())])).unwrap();
        let t = texts(&d).into_iter().find(|t| t.text == "name").unwrap().at;
        (t.0 > d.width / 2.0, t.1 > d.height / 2.0, t.1)
    };
    assert_eq!((place(|x| -x).0, place(|x| -x).1), (true, false)); // falls: upper right
    assert_eq!((place(|x| x).0, place(|x| x).1), (true, true)); // rises: lower right
    // Everywhere: above the plot, below the title.
    assert!(place(|x| 50.0 * (x * 1.7).sin()).2 < 40.0);
}

#[test]
fn awkward_bars_and_matrices_are_laid_out() {
    let word = "Unquestionably-incomprehensible";
    let bars = |categories: Vec<String>, values: Vec<f64>, decimals| BarsSpec {
        title: "t".into(),
        x_label: "x".into(),
        y: Axis::linear("y"),
        series: vec![
            BarSeries { name: "a".into(), values: values.clone(), errors: Some(vec![0.5; values.len()]) },
            BarSeries { name: "b".into(), values, errors: None },
        ],
        categories,
        decimals,
        size: None,
    };
    let many: Vec<String> = (0..60).map(|i| format!("{word} {i}")).collect();
    for (name, spec) in [
        ("one bar", bars(names(&["one"]), vec![1.0], Some(3))),
        ("zeros", bars(names(&["one", "two"]), vec![0.0, 0.0], None)),
        ("below zero", bars(names(&["one", "two"]), vec![-3.0, 2.0], Some(1))),
        ("nothing to show", bars(names(&["one", "two"]), vec![f64::NAN, 2.0], Some(1))),
        ("an error that is no number", {
            let mut spec = bars(names(&["one"]), vec![1.0], Some(1));
            spec.series[0].errors = Some(vec![f64::NAN]);
            spec
        }),
        ("long names", bars(many[..8].to_vec(), vec![1.0; 8], Some(6))),
        ("many names", bars(many.clone(), vec![1.0; 60], Some(2))),
    ] {
        let d = Figure::bars(&spec).unwrap_or_else(|e| panic!("{name}: {e}"));
        check_layout(name, &d);
        check_forms(name, &d);
    }
    let heatmap = |rows: Vec<String>, columns: Vec<String>, value: f64| HeatmapSpec {
        title: word.repeat(9),
        y_label: word.repeat(4),
        x_label: word.repeat(4),
        values: vec![value; rows.len() * columns.len()],
        rows,
        columns,
        colour: Axis::linear(word.repeat(4)),
        size: None,
    };
    for (name, spec) in [
        ("one cell", heatmap(names(&["r"]), names(&["c"]), 0.3)),
        ("long rows and columns", heatmap(many.clone(), many[..12].to_vec(), 1e-7)),
        ("many columns", heatmap(many[..3].to_vec(), many.clone(), 1e7)),
    ] {
        let d = Figure::heatmap(&spec).unwrap_or_else(|e| panic!("{name}: {e}"));
        check_layout(name, &d);
        check_forms(name, &d);
    }
    let classes = many[..12].to_vec();
    let spec = ConfusionSpec { title: word.into(), classes, counts: vec![123_456; 144], width: None };
    check_layout("large counts", &Figure::confusion(&spec).unwrap());
}

#[test]
fn long_captions_stay_under_their_images() {
    let picture = Picture { width: 3, height: 2, channels: 1, pixels: vec![9; 6] };
    let tile = |right| Tile { picture: picture.clone(), caption: "a caption of many many words".repeat(3), right };
    let tiles = vec![tile(None), tile(Some(true)), tile(Some(false)), tile(None), tile(None)];
    for columns in [0, 1, 2, 3, 9] {
        let spec = TilesSpec { title: "t".into(), columns, lines: 0, tiles: tiles.clone(), width: None };
        let d = Figure::tiles(&spec).unwrap();
        check_layout("tiles", &d);
        check_forms("tiles", &d);
    }
}

#[test]
fn data_that_cannot_be_drawn_are_named() {
    let why = |r: Result<Drawing>| r.unwrap_err().to_string();
    let has = |text: String, part: &str| assert!(text.contains(part), "'{part}' is not in: {text}");
    has(why(Figure::lines(&lines(vec![]))), "figure 't' cannot be drawn: it has no series");
    has(why(Figure::lines(&lines(vec![Series::new("s", vec![], vec![])]))), "the series 's' has no points");
    has(why(Figure::lines(&lines(vec![Series::new("s", vec![1.0], vec![])]))), "1 x and 0 y");
    has(
        why(Figure::lines(&lines(vec![Series::new("s", vec![1.0], vec![f64::NAN])]))),
        "no point that its axes can show",
    );
    let mut band = Series::new("s", vec![1.0, 2.0], vec![1.0, 2.0]);
    band.band = Some(Band { low: vec![1.0], high: vec![1.0] });
    has(why(Figure::lines(&lines(vec![band]))), "2 points and a band of 1 and 1");
    let one = || vec![Series::new("s", vec![1.0], vec![1.0])];
    let mut spec = lines(one());
    spec.x.range = Some((2.0, 1.0));
    has(why(Figure::lines(&spec)), "the axis 'x' cannot go from 2 to 1");
    spec = LinesSpec { size: Some((120.0, 30.0)), ..lines(one()) };
    has(why(Figure::lines(&spec)), "points for the data");
    has(why(Figure::bars(&BarsSpec::default())), "no bars");
    has(why(Figure::heatmap(&HeatmapSpec::default())), "no cells");
    let spec =
        HeatmapSpec { rows: names(&["a"]), columns: names(&["b"]), values: vec![f64::NAN], ..Default::default() };
    has(why(Figure::heatmap(&spec)), "no finite value");
    let spec = ConfusionSpec { classes: names(&["a", "b"]), counts: vec![1; 3], ..Default::default() };
    has(why(Figure::confusion(&spec)), "2 classes have 3 counts");
    has(why(Figure::reliability(&ReliabilitySpec::default())), "no examples");
    has(why(Figure::tiles(&TilesSpec::default())), "no images");
    let picture = Picture { width: 2, height: 2, channels: 3, pixels: vec![0; 4] };
    let spec = TilesSpec { tiles: vec![Tile { picture, ..Tile::default() }], ..TilesSpec::default() };
    has(why(Figure::tiles(&spec)), "2 × 2 × 3 has 4 values");
    let d = Figure::lines(&lines(one())).unwrap();
    for scale in [0.0, -1.0, f64::NAN, 1e9] {
        assert!(d.png(scale).is_err(), "{scale}");
    }
}

#[test]
fn the_calibration_error_is_the_weighted_gap() {
    let bin = |confidence, accuracy, count| Bin { low: 0.0, high: 1.0, confidence, accuracy, count };
    let bins = vec![bin(0.5, 0.7, 1), bin(0.9, 0.8, 3), bin(f64::NAN, f64::NAN, 0)];
    let spec = ReliabilitySpec { bins, ..ReliabilitySpec::default() };
    assert!((spec.ece() - (0.25 * 0.2 + 0.75 * 0.1)).abs() < 1e-12);
}

#[test]
fn a_rectangle_is_painted_where_the_drawing_says() {
    use super::palette::{BLUE, INK};
    use super::scene::{Paint, Rect};
    let mut d = Drawing::new(20.0, 10.0, "");
    d.rect(Rect { x: 5.0, y: 2.0, w: 10.0, h: 4.0 }, Paint::fill(BLUE));
    let picture = Picture { width: 2, height: 1, channels: 1, pixels: vec![10, 200] };
    d.image(picture, Rect { x: 0.0, y: 8.0, w: 4.0, h: 2.0 });
    d.text("", (1.0, 1.0), 8.0, Anchor::Start, 0.0, INK);
    let png = d.png(2.0).unwrap();
    let mut reader = ::png::Decoder::new(std::io::Cursor::new(&png)).read_info().unwrap();
    assert_eq!(reader.info().pixel_dims.map(|p| p.xppu), Some(5669)); // 144 per inch
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    let at = |x: usize, y: usize| &pixels[(y * 40 + x) * 3..][..3];
    assert_eq!((at(10, 4), at(29, 11)), (&BLUE.rgb[..], &BLUE.rgb[..]));
    assert_eq!((at(9, 4), at(30, 11), at(10, 3)), (&[255; 3][..], &[255; 3][..], &[255; 3][..]));
    assert_eq!((at(3, 17), at(4, 17)), (&[10; 3][..], &[200; 3][..]));
}
