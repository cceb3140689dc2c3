//! Data on stdout, progress on stderr. Plain text without colour, so `NO_COLOR` has nothing to switch off. What names and files
//! bring along does not steer a terminal: see [`visible`].

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;
use tweedie::files::write_atomic;
use tweedie_engine::{Choice, Device};
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

/// Write text to stdout that steers a terminal itself; what it quotes must be [`visible`].
pub fn draw(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
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

/// A line of progress on stderr. A closed stderr stops nothing.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", message(text));
}

/// Open the device called `name` and say on stderr which one it is and why.
pub fn open_device(name: &str) -> Result<Choice> {
    let choice = Device::open(name)?;
    note(&format!("device: {} ({})", choice.device, choice.reason));
    choice.device.take_notes().iter().for_each(|n| note(&format!("note: {n}")));
    Ok(choice)
}

/// What is going on, on stderr: one line that overwrites itself on a terminal, a line per stage elsewhere.
pub struct Progress {
    terminal: bool,
    stage: RefCell<String>,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { terminal: io::stderr().is_terminal(), stage: RefCell::default() }
    }

    pub fn say(&self, stage: &str, detail: &str) {
        let (stage, detail) = (&*in_one_line(stage), in_one_line(detail));
        let mut err = io::stderr().lock();
        if self.terminal {
            let _ = write!(err, "\r\x1b[K{stage} {detail}");
        } else if *self.stage.borrow() != stage {
            let _ = writeln!(err, "{stage}");
        }
        let _ = err.flush();
        *self.stage.borrow_mut() = stage.to_string();
    }

    /// A line that overwrites itself on a terminal; nothing elsewhere.
    pub fn tick(&self, line: &str) {
        if self.terminal {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r\x1b[K{}", in_one_line(line));
            let _ = err.flush();
        }
    }

    /// A line that stays.
    pub fn line(&self, line: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(io::stderr().lock(), "{clear}{}", message(line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Which way a column leans.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// A Markdown table that also reads well in a terminal.
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&str, Align)]) -> Table {
        Table { columns: columns.iter().map(|(n, a)| (n.to_string(), *a)).collect(), rows: Vec::new() }
    }

    /// A name in a cell may hold anything: it stays on its line.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.iter().map(|c| in_one_line(c).into_owned()).collect());
    }

    pub fn render(&self) -> String {
        let width = |i: usize| {
            let cells = self.rows.iter().map(|r| r[i].chars().count());
            cells.chain([self.columns[i].0.chars().count(), 3]).max().unwrap_or(3)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let padded = cells.iter().zip(&widths).zip(&self.columns).map(|((c, &w), (_, a))| match a {
                Align::Left => format!("{c:<w$}"),
                Align::Right => format!("{c:>w$}"),
            });
            format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
        };
        let names: Vec<String> = self.columns.iter().map(|c| c.0.clone()).collect();
        let rule = widths.iter().zip(&self.columns).map(|(&w, (_, a))| match a {
            Align::Left => "-".repeat(w),
            Align::Right => "-".repeat(w - 1) + ":",
        });
        let mut out = line(&names) + &line(&rule.collect::<Vec<_>>());
        self.rows.iter().for_each(|r| out += &line(r));
        out
    }
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

    #[test]
    fn tables_are_aligned_markdown() {
        let mut t = Table::new(&[("op", Align::Left), ("ms", Align::Right)]);
        t.row(vec!["add".into(), "1.25".into()]);
        t.row(vec!["mean²".into(), "10".into()]);
        assert_eq!(t.render(), "| op    |   ms |\n| ----- | ---: |\n| add   | 1.25 |\n| mean² |   10 |\n");
    }
}
