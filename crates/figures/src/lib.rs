//! Figures fit for print: plain data in, one [`Drawing`] out, which gives itself as SVG and as PNG.
//!
//! Fill in the description of a figure, a `…Spec` of plain vectors and words, and hand it to [`Figure`]. Ranges, ticks,
//! the place of the legend, what is written out and what is shortened follow from the data; data that cannot be drawn
//! are an [`Error`] that says why. Files are the caller's affair: a [`Drawing`] gives text and bytes.
//!
//! ```
//! use tweedie_figures::{Axis, Figure, LinesSpec, PRINT_SCALE, Series};
//!
//! let epochs = vec![1.0, 2.0, 3.0, 4.0];
//! let drawing = Figure::lines(&LinesSpec {
//!     title: "Loss falls".into(),
//!     x: Axis::linear("Epoch"),
//!     y: Axis::log("Loss (nats)"),
//!     series: vec![
//!         Series::new("training", epochs.clone(), vec![2.3, 1.1, 0.6, 0.4]).spread(&[0.3, 0.2, 0.1, 0.1]),
//!         Series::new("validation", epochs, vec![2.3, 1.2, 0.8, 0.7]),
//!     ],
//!     size: None,
//! })?;
//! assert!(drawing.svg().starts_with("<svg")); // for a file, or for the middle of a page
//! assert!(drawing.png(PRINT_SCALE)?.starts_with(b"\x89PNG")); // the same picture in pixels
//!
//! let nothing = Figure::lines(&LinesSpec { title: "Nothing".into(), ..LinesSpec::default() });
//! assert_eq!(nothing.unwrap_err().to_string(), "the figure 'Nothing' cannot be drawn: it has no series");
//! # Ok::<(), tweedie_figures::Error>(())
//! ```
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

pub use axes::{Axis, Scale};
pub use bars::{BarSeries, BarsSpec};
pub use confusion::ConfusionSpec;
pub use heatmap::HeatmapSpec;
pub use lines::{Band, LinesSpec, Series};
pub use panels::{Panel, PanelLine, PanelsSpec, Tone};
pub use reliability::{Bin, ReliabilitySpec};
pub use scene::{Drawing, Picture};
pub use svg::picture_uri;
pub use tiles::{Tile, TilesSpec};

/// The `scale` of a [`PNG`](Drawing::png) for print: 300 dots per inch.
pub const PRINT_SCALE: f64 = 300.0 / 72.0;

/// Why there is no figure.
#[derive(Debug)]
pub enum Error {
    /// The data cannot be drawn.
    Data {
        /// Its title.
        figure: String,
        /// What is wrong with them.
        why: String,
    },
    /// The drawing cannot become a PNG.
    Png(String),
}

/// A figure, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Data { figure, why } => write!(f, "the figure '{figure}' cannot be drawn: {why}"),
            Error::Png(why) => write!(f, "the figure has no PNG form: {why}"),
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
