//! What a call of the network buys: CIDEr-D over the passes that a caption takes, a line for each way of sampling.

use std::path::Path;

use tweedie::files::write_atomic;
use tweedie_figures::{Axis, Band, Figure, LinesSpec, PRINT_SCALE, Series};

use super::Row;
use crate::failure::Result;
use crate::report::note;

/// More bands than this would hide each other.
const BANDS: usize = 2;

/// Draw `rows` into a file, as PNG or SVG by its name.
pub fn draw(rows: &[Row], path: &Path) -> Result<()> {
    let drawing = Figure::lines(&LinesSpec {
        title: "Captions over passes of the network".into(),
        x: Axis::log("network passes per caption"),
        y: Axis::linear("CIDEr-D"),
        series: lines(rows),
        size: Some((460.0, 300.0)),
    })?;
    let data = match path.extension().and_then(|e| e.to_str()) {
        Some("png") => drawing.png(PRINT_SCALE)?,
        _ => drawing.svg().into_bytes(),
    };
    write_atomic(path, &data)?;
    note(&format!("wrote {}", path.display()));
    Ok(())
}

/// Rows that differ in their steps alone are a line.
fn lines(rows: &[Row]) -> Vec<Series> {
    let mut ways: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        let way = row.way();
        match ways.iter_mut().find(|w| w.0 == way) {
            Some(known) => known.1.push(row),
            None => ways.push((way, vec![row])),
        }
    }
    let few = ways.len() <= BANDS;
    let line = |(way, mut rows): (String, Vec<&Row>)| {
        rows.sort_by_key(|r| r.passes);
        let of = |f: fn(&Row) -> f64| rows.iter().map(|r| f(r)).collect::<Vec<_>>();
        let line = Series::new(way, of(|r| r.passes as f64), of(|r| r.scores.cider_d));
        let band = Band { low: of(|r| r.intervals.cider_d[0]), high: of(|r| r.intervals.cider_d[1]) };
        Series { band: few.then_some(band), ..line }
    };
    ways.into_iter().map(line).collect()
}
