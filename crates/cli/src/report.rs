//! Data on stdout, progress on stderr ([`terminal`]). Colours are on stderr alone, and only on a terminal that wants them
//! (`NO_COLOR`, `CLICOLOR`, `TERM`). What names and files bring along does not steer a terminal: see [`visible`].

mod progress;
mod table;
pub mod terminal;

pub use progress::{Bar, CHARS, Progress, Sparse, redrawn, with_bar};
pub use table::{Align, Table};
pub use terminal::{note, open_device, open_device_named, warn};

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;
use tweedie::files::write_atomic;
use tweedie_figures::{Drawing, PRINT_SCALE};

use crate::failure::Result;

/// Characters that a terminal obeys instead of showing them: control characters, and those that turn the direction of writing.
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text for a terminal: what would steer it, such as the escape codes of a file's name, is spelt out. Line ends and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    spelt(text, |c| steers(c) && c != '\n' && c != '\t')
}

/// As [`visible`], on one line.
pub fn in_one_line(text: &str) -> Cow<'_, str> {
    spelt(text, steers)
}

fn spelt(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let spell = |c: char| if hidden(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(spell).collect())
}

/// As [`visible`], and further lines are indented, so that none of them is taken for one of ours.
pub fn message(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 8000; // a file may hold a line of any length
    let text = text.trim_end();
    if let Some((at, _)) = text.char_indices().nth(LONGEST) {
        return Cow::Owned(format!("{}…", message(&text[..at])));
    }
    match visible(text) {
        shown if shown.contains('\n') => Cow::Owned(shown.replace('\n', "\n  ")),
        shown => shown,
    }
}

/// Write data to stdout: as they are, but made [`visible`] where a terminal shows them.
pub fn print(text: &str) -> Result<()> {
    if io::stdout().is_terminal() { draw(&visible(text)) } else { draw(text) }
}

/// As [`print()`], for sentences: on a terminal they are broken at words.
pub fn print_words(text: &str) -> Result<()> {
    let out = console::Term::stdout();
    if out.is_term() { draw(&terminal::wrapped(&visible(text), usize::from(out.size().1))) } else { draw(text) }
}

/// Write text to stdout that steers a terminal itself; what it quotes must be [`visible`].
pub fn draw(text: &str) -> Result<()> {
    Ok(terminal::aside(|| {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    })?)
}

/// Write a value as JSON to stdout.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(value)?;
    // JSON need not spell out all that steers a terminal, but may.
    let spell = |c: char| if steers(c) && c != '\n' { format!("\\u{:04x}", c as u32) } else { c.to_string() };
    let json = if json.contains(|c| steers(c) && c != '\n') { json.chars().map(spell).collect() } else { json };
    draw(&(json + "\n"))
}

/// Write `dir/name.svg` and `dir/name.png`. Each file appears whole or not at all.
pub fn save_figure(drawing: &Drawing, dir: &Path, name: &str) -> Result<()> {
    let png = drawing.png(PRINT_SCALE)?;
    std::fs::create_dir_all(dir).map_err(|e| tweedie::Error::file(dir, e))?;
    write_atomic(&dir.join(format!("{name}.svg")), drawing.svg().as_bytes())?;
    Ok(write_atomic(&dir.join(format!("{name}.png")), &png)?)
}

/// Write a figure into one file, as PNG or SVG by its name, and say so.
pub fn write_figure(path: &Path, drawing: &Drawing) -> Result<()> {
    let data = match path.extension().and_then(|e| e.to_str()) {
        Some("png") => drawing.png(PRINT_SCALE)?,
        _ => drawing.svg().into_bytes(),
    };
    write_atomic(path, &data)?;
    note(&format!("wrote {}", path.display()));
    Ok(())
}

/// "1 thread", "8 threads".
pub fn threads(n: usize) -> String {
    format!("{n} {}", if n == 1 { "thread" } else { "threads" })
}

/// Seconds as "42 s", "3 min 05 s", "2 h 10 min".
pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

/// A time that is only guessed: "under a minute", "about 12 min", "about 54 h", "about 12 days".
pub fn roughly(seconds: f64) -> String {
    let (minutes, hours) = (seconds / 60.0, seconds / 3600.0);
    match seconds {
        s if s < 50.0 => "under a minute".into(),
        _ if minutes < 90.0 => format!("about {:.0} min", minutes.max(1.0)),
        _ if hours < 100.0 => format!("about {hours:.0} h"),
        _ => format!("about {} days", count((hours / 24.0).round().min(1e9) as usize)),
    }
}

/// Digits in groups of three: "1,234,567".
pub fn count(n: usize) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or("")).collect();
    groups.join(",")
}

/// Bytes with a unit that keeps the number short.
pub fn size(n: u64) -> String {
    match n {
        n if n < 1 << 10 => format!("{n} B"),
        n if n < 1 << 20 => format!("{:.0} KiB", n as f64 / 1024.0),
        n => bytes(n as usize),
    }
}

/// Bytes in GiB or MiB.
pub fn bytes(n: usize) -> String {
    let gib = n as f64 / (1_u64 << 30) as f64;
    if gib >= 1.0 { format!("{gib:.1} GiB") } else { format!("{:.0} MiB", gib * 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(visible("a\tb\nc é 犬"), "a\tb\nc é 犬");
        assert_eq!(
            visible("\u{1b}[31mred\r\u{7}\u{9b}2J\u{7f}\u{202e}"),
            "\\u{1b}[31mred\\r\\u{7}\\u{9b}2J\\u{7f}\\u{202e}"
        );
        assert!(message(&"é".repeat(9000)).ends_with("é…") && message(&"é".repeat(9000)).chars().count() == 8001);
        assert_eq!(message("no\nhint: rm -r ."), "no\n  hint: rm -r .");
        let mut t = Table::new(&[("class", Align::Left)]);
        t.row(vec!["a\n| b \u{1b}c".into()]);
        assert!(t.render().ends_with("| a\\n| b \\u{1b}c |\n"), "{}", t.render());
    }

    #[test]
    fn durations_read_well() {
        assert_eq!([42.4, 185.0, 7800.0].map(duration), ["42 s", "3 min 05 s", "2 h 10 min"]);
        assert_eq!(
            [9.0, 100.0, 5e3, 194_400.0, 1e6].map(roughly),
            ["under a minute", "about 2 min", "about 83 min", "about 54 h", "about 12 days"]
        );
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_figure_is_saved_in_both_forms_and_nothing_else_is_left() {
        use tweedie_figures::{Axis, BarSeries, BarsSpec, Figure};
        let series = vec![BarSeries { name: "s".into(), values: vec![1.0], errors: None }];
        let spec = BarsSpec { y: Axis::linear("y"), categories: vec!["c".into()], series, ..BarsSpec::default() };
        let drawing = Figure::bars(&spec).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("new/figures");
        save_figure(&drawing, &dir, "bars").unwrap();
        assert_eq!(std::fs::read_to_string(dir.join("bars.svg")).unwrap(), drawing.svg());
        assert_eq!(std::fs::read(dir.join("bars.png")).unwrap(), drawing.png(PRINT_SCALE).unwrap());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
        // A file where the folder should be.
        let e = save_figure(&drawing, &dir.join("bars.svg"), "x").unwrap_err().to_string();
        assert!(e.contains("bars.svg"), "{e}");
    }
}
