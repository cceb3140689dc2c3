//! Data on stdout, progress on stderr. Plain text without colour, so `NO_COLOR` has nothing to switch off.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;
use tweedie::files::write_atomic;
use tweedie_engine::{Choice, Device};
use tweedie_figures::{Drawing, PRINT_SCALE};

use crate::failure::Result;

/// Write data to stdout.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Write a value as JSON to stdout.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Write `dir/name.svg` and `dir/name.png`. Each file appears whole or not at all.
pub fn save_figure(drawing: &Drawing, dir: &Path, name: &str) -> Result<()> {
    let png = drawing.png(PRINT_SCALE)?;
    std::fs::create_dir_all(dir).map_err(|e| tweedie::Error::file(dir, e))?;
    write_atomic(&dir.join(format!("{name}.svg")), drawing.svg().as_bytes())?;
    Ok(write_atomic(&dir.join(format!("{name}.png")), &png)?)
}

/// A line of progress on stderr.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Open the device called `name` and say on stderr which one it is and why.
pub fn open_device(name: &str) -> Result<Choice> {
    let choice = Device::open(name)?;
    let _ = writeln!(io::stderr(), "device: {} ({})", choice.device, choice.reason);
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
            let _ = write!(err, "\r\x1b[K{line}");
            let _ = err.flush();
        }
    }

    /// A line that stays.
    pub fn line(&self, line: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(io::stderr().lock(), "{clear}{line}");
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

    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
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
