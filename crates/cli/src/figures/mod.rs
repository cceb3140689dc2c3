//! Figures fit for print: plain data in, one [`Drawing`] out, which writes itself as SVG and as PNG.
//!
//! Lengths are in points (1/72 inch), so that an 8 pt label is 8 pt on paper. Text is drawn as outlines of one embedded
//! font: it looks the same everywhere. Colours are Okabe and Ito's; dashes, markers and hatching repeat what colour says,
//! for grey prints. The SVG has no ids and no scripts: several of them can stand in one HTML page.
//!
//! | file | what |
//! |---|---|
//! | `lines`, `bars`, `heatmap`, `confusion`, `reliability`, `tiles`, `panels` | one kind of figure each |
//! | `ticks`, `axes`, `categories`, `legend`, `palette` | what they share |
//! | `scene`, `font` | the drawing and its text |
//! | `svg`, `png` | the two ways out |

mod axes;
mod bars;
mod categories;
mod confusion;
#[cfg(test)]
mod demo;
mod font;
mod heatmap;
mod legend;
mod lines;
mod palette;
mod panels;
mod png;
mod reliability;
mod scene;
mod svg;
#[cfg(test)]
mod tests;
mod ticks;
mod tiles;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use axes::Axis;
pub use bars::{BarSeries, BarsSpec};
pub use confusion::ConfusionSpec;
pub use heatmap::HeatmapSpec;
pub use lines::{LinesSpec, Series};
pub use panels::{Panel, PanelLine, PanelsSpec, Tone};
pub use reliability::{Bin, ReliabilitySpec};
pub use scene::{Drawing, Picture};
pub use svg::picture_uri;
pub use tiles::{Tile, TilesSpec};

/// What a saved PNG has: 300 dots per inch.
pub const PRINT_SCALE: f64 = 300.0 / 72.0;

/// Why there is no figure.
#[derive(Debug)]
pub enum Error {
    /// The data cannot be drawn.
    Data { figure: String, why: String },
    /// The drawing cannot become a PNG.
    Png(String),
    /// The file cannot be written.
    Write { path: PathBuf, source: io::Error },
}

pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Data { figure, why } => write!(f, "the figure '{figure}' cannot be drawn: {why}"),
            Error::Png(why) => write!(f, "the figure has no PNG form: {why}"),
            Error::Write { path, source } => write!(f, "{} cannot be written: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

/// The error for `figure`.
fn data_error(figure: &str, why: impl Into<String>) -> Error {
    Error::Data { figure: figure.to_string(), why: why.into() }
}

/// The kinds of figures.
pub struct Figure;

impl Figure {
    /// Named series over a common axis, each with an optional band.
    pub fn lines(spec: &LinesSpec) -> Result<Drawing> {
        lines::draw(spec)
    }

    /// Groups of bars with error bars.
    pub fn bars(spec: &BarsSpec) -> Result<Drawing> {
        bars::draw(spec)
    }

    /// A matrix as colours, with a colour bar.
    pub fn heatmap(spec: &HeatmapSpec) -> Result<Drawing> {
        heatmap::draw(spec)
    }

    /// True against predicted classes: counts, coloured by the fraction of the true class.
    pub fn confusion(spec: &ConfusionSpec) -> Result<Drawing> {
        confusion::draw(spec)
    }

    /// Accuracy against confidence, above a histogram of confidence.
    pub fn reliability(spec: &ReliabilitySpec) -> Result<Drawing> {
        reliability::draw(spec)
    }

    /// Small images with captions; a border says right or wrong.
    pub fn tiles(spec: &TilesSpec) -> Result<Drawing> {
        tiles::draw(spec)
    }

    /// Pictures with labelled lines of text beside them.
    pub fn panels(spec: &PanelsSpec) -> Result<Drawing> {
        panels::draw(spec)
    }
}

/// Write `dir/name.svg` and `dir/name.png`. Each file appears whole or not at all.
pub fn save(drawing: &Drawing, dir: &Path, name: &str) -> Result<()> {
    let png = drawing.png(PRINT_SCALE)?;
    fs::create_dir_all(dir).map_err(|source| Error::Write { path: dir.to_path_buf(), source })?;
    write_whole(&dir.join(format!("{name}.svg")), drawing.svg().as_bytes())?;
    write_whole(&dir.join(format!("{name}.png")), &png)
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}.part", std::process::id()));
    let aside = PathBuf::from(aside);
    let written = fs::File::create(&aside)
        .and_then(|mut f| f.write_all(bytes).and_then(|()| f.sync_all()))
        .and_then(|()| fs::rename(&aside, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&aside); // the first failure is the one to tell
        Error::Write { path: path.to_path_buf(), source }
    })
}
