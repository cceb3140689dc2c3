//! What is going on and how far it has come: a redrawn line on a terminal, a few plain lines elsewhere.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use console::truncate_str;
use indicatif::{ProgressBar, ProgressStyle};
use tweedie::progress;

use super::terminal::{BARS, FREE, is_living, note, say, width};
use super::{duration, in_one_line, message};

/// A redrawn line by an indicatif template, which is ours and right.
pub fn redrawn(template: &str) -> Option<ProgressBar> {
    if !is_living() {
        return None;
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = BARS.add(ProgressBar::new(0));
    bar.set_style(style.progress_chars(CHARS));
    bar.enable_steady_tick(Duration::from_millis(120));
    Some(bar)
}

/// A whole, a half and an empty piece of a bar.
pub const CHARS: &str = "━╸─";

/// Text beside so many other columns, cut where there is no room.
fn beside(columns: usize, text: &str) -> String {
    let room = width().saturating_sub(columns + FREE).max(10);
    truncate_str(&in_one_line(text), room, "…").into_owned()
}

/// What is going on: one line that overwrites itself on a terminal, a line per stage elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
    stage: RefCell<String>,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { bar: redrawn("{spinner:.cyan} {msg}"), stage: RefCell::default() }
    }

    pub fn say(&self, stage: &str, detail: &str) {
        let stage = &*in_one_line(stage);
        match &self.bar {
            Some(bar) => bar.set_message(beside(2, &format!("{stage} {detail}"))),
            None if *self.stage.borrow() != stage => note(stage),
            None => {}
        }
        *self.stage.borrow_mut() = stage.to_string();
    }

    /// A line that overwrites itself on a terminal; nothing elsewhere.
    pub fn tick(&self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(beside(2, line));
        }
    }

    /// A line that stays.
    pub fn line(&self, line: &str) {
        say(&message(line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Work that is counted: a bar with the time left, elsewhere a line now and then if it takes long.
pub struct Bar {
    what: String,
    bar: Option<ProgressBar>,
    lines: RefCell<Sparse>,
    /// When the present count began, and where it is.
    since: Cell<Instant>,
    done: Cell<usize>,
}

impl Bar {
    pub fn new(what: &str) -> Bar {
        let bar = redrawn("{spinner:.cyan} {bar:14.cyan/dim} {msg}");
        if let Some(bar) = &bar {
            bar.set_message(beside(17, what));
        }
        let (what, lines) = (what.to_string(), RefCell::new(Sparse::every(5.0)));
        Bar { what, bar, lines, since: Cell::new(Instant::now()), done: Cell::new(0) }
    }

    /// So many of so many are done (0: nobody knows).
    pub fn at(&self, done: usize, of: usize) {
        if done < self.done.replace(done) {
            self.since.set(Instant::now()); // the next count
        }
        let seconds = self.since.get().elapsed().as_secs_f64();
        let left = (done > 0 && of >= done && seconds > 1.0).then(|| seconds * (of - done) as f64 / done as f64);
        let left = left.map_or(String::new(), |s| format!(", {} left", duration(s)));
        let count = if of > 0 { format!("{done}/{of}{left}") } else { format!("{done}") };
        match &self.bar {
            Some(bar) => {
                bar.set_length(of.max(done) as u64);
                bar.set_position(done as u64);
                bar.set_message(beside(17, &format!("{} {count}", self.what)));
            }
            None if self.lines.borrow_mut().due(done as f64 / of.max(done).max(1) as f64) => {
                note(&format!("{}: {count}", self.what));
            }
            None => {}
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Do `work` under a bar that follows how far the library says it has come.
pub fn with_bar<R>(what: &str, work: impl FnOnce() -> R) -> R {
    let bar = Bar::new(what);
    progress::watched(move |p| bar.at(p.done, p.of), work)
}

/// Which lines of many are said: not more often than every so many seconds, and some hundred however long it takes.
pub struct Sparse {
    began: Instant,
    gap: f64,
    /// Seconds and share of the whole at the last line.
    last: (f64, f64),
}

impl Sparse {
    /// A two-hundredth of the whole gets a line, and so does a tenth of the time so far.
    const SHARE: f64 = 1.0 / 200.0;
    const LONGER: f64 = 0.1;

    /// Lines at least `gap` seconds apart.
    pub fn every(gap: f64) -> Sparse {
        Sparse { began: Instant::now(), gap, last: (0.0, 0.0) }
    }

    /// Whether a line is due now, with this share of the whole done.
    pub fn due(&mut self, share: f64) -> bool {
        self.due_at(self.began.elapsed().as_secs_f64(), share)
    }

    fn due_at(&mut self, seconds: f64, share: f64) -> bool {
        let since = seconds - self.last.0;
        let due = since >= self.gap && (share - self.last.1 >= Self::SHARE || since >= Self::LONGER * seconds);
        if due {
            self.last = (seconds, share);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long a run is and however often it is asked, the lines stay few, and a short one has some.
    #[test]
    fn lines_stay_few() {
        let lines = |seconds: f64, events: usize| {
            let mut sparse = Sparse::every(1.0);
            let at = |i: usize| i as f64 / events as f64;
            (1..=events).filter(|&i| sparse.due_at(seconds * at(i), at(i))).count()
        };
        assert_eq!(lines(0.5, 100), 0);
        assert!((8..=10).contains(&lines(10.0, 400)), "{}", lines(10.0, 400));
        for hours in [0.1, 1.0, 54.0, 1000.0] {
            let n = lines(3600.0 * hours, 100_000);
            assert!((100..400).contains(&n), "{hours} h: {n}");
        }
        // One that is nowhere near its end still says something.
        let mut sparse = Sparse::every(1.0);
        assert!((1..1000).filter(|&s| sparse.due_at(s as f64, 0.0)).count() > 20);
    }
}
