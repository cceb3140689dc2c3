//! stderr: how much is said, in which colours, and that no line tears a redrawn one.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use console::{Term, measure_text_width, style};
use indicatif::{MultiProgress, ProgressDrawTarget, TermLike};
use tweedie::interrupt;
use tweedie_engine::{Choice, Device, cuda};

use super::message;
use crate::failure::Result;

/// How much is said on stderr.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Level {
    /// Warnings and errors.
    Quiet,
    Normal,
    /// Every step, and what the machine does.
    Verbose,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Normal as u8);

/// Before anything is said.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

fn says(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level as u8
}

/// Whether `--verbose` was given.
pub fn is_verbose() -> bool {
    says(Level::Verbose)
}

/// Whether lines of stderr can be redrawn, and are wanted.
pub fn is_living() -> bool {
    static TERMINAL: LazyLock<bool> =
        LazyLock::new(|| Term::stderr().is_term() && std::env::var_os("TERM").is_none_or(|t| t != "dumb"));
    *TERMINAL && says(Level::Normal)
}

/// Columns of stderr's terminal.
pub fn width() -> usize {
    usize::from(Term::stderr().size().1)
}

/// Columns at the right that stay free: there the terminal shows the ^C of Ctrl-C.
pub const FREE: usize = 4;

/// stderr with fewer columns than it has. indicatif fills a line to its end, and what is typed there would begin the next one, so that
/// the line could not be found again.
#[derive(Debug)]
struct Narrow(Term);

impl TermLike for Narrow {
    fn width(&self) -> u16 {
        self.0.size().1.saturating_sub(FREE as u16).max(1)
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.0.write_line(s)
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.0.write_str(s)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Every redrawn line there is.
pub static BARS: LazyLock<MultiProgress> = LazyLock::new(|| {
    let target = if is_living() {
        ProgressDrawTarget::term_like_with_hz(Box::new(Narrow(Term::buffered_stderr())), 12)
    } else {
        ProgressDrawTarget::hidden()
    };
    MultiProgress::with_draw_target(target)
});

/// Write something while the redrawn lines are out of the way.
pub fn aside<R>(write: impl FnOnce() -> R) -> R {
    BARS.suspend(write)
}

/// A line of progress. A closed stderr stops nothing.
pub fn note(text: &str) {
    if says(Level::Normal) {
        say(&message(text));
    }
}

/// As [`note`], for a line that may have colours; what it quotes must be visible already.
pub fn tell(text: &str) {
    if says(Level::Normal) {
        say(text);
    }
}

/// A line for `--verbose`.
pub fn detail(text: &str) {
    if says(Level::Verbose) {
        say(&message(text));
    }
}

/// A line that is always said.
pub fn warn(text: &str) {
    let word = style("warning:").for_stderr().yellow().bold();
    say(&format!("{word} {}", message(text)));
}

/// What a command that was stopped has left behind, and how to go on: always said.
pub fn stopped(text: &str) {
    say(&message(text));
}

/// Lines that may have colours; what they quote must be visible already.
pub fn say(text: &str) {
    let shown = if Term::stderr().is_term() { wrapped(text, width()) } else { text.to_string() };
    let _ = aside(|| writeln!(io::stderr(), "{shown}"));
}

/// Break lines at spaces to fit `width` columns; what follows a break is indented as its line is, and by two more. A command stays whole:
/// it is to be copied.
pub fn wrapped(text: &str, width: usize) -> String {
    text.split('\n').map(|line| wrapped_line(line, width)).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str, width: usize) -> String {
    let indent = line.len() - line.trim_start_matches(' ').len() + 2;
    let command = line.trim_start().starts_with("tweedie ");
    if measure_text_width(line) <= width || indent >= width / 2 || command {
        return line.to_string();
    }
    let (mut out, mut column) = (String::new(), 0);
    for (i, word) in line.split(' ').enumerate() {
        let wide = measure_text_width(word);
        if i > 0 && column + 1 + wide > width && column > indent {
            out = out.trim_end().to_string() + "\n" + &" ".repeat(indent);
            column = indent;
        } else if i > 0 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += wide;
    }
    out
}

/// What Ctrl-C waits for.
static AT: Mutex<&str> = Mutex::new("step");

/// From now on Ctrl-C waits for this to end: "step", "evaluation".
pub fn is_at(what: &'static str) {
    // What Ctrl-C itself has caused is not what it waits for.
    if !interrupt::requested() {
        *AT.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

/// Catch Ctrl-C: it is answered at once, and what is being done, such as a "step", comes to its end.
pub fn catch_interrupts(what: &'static str) -> Result<()> {
    is_at(what);
    Ok(interrupt::install_saying(|| {
        let at = *AT.lock().unwrap_or_else(PoisonError::into_inner);
        say(&style(format!("stopping after this {at}, again to quit now")).for_stderr().yellow().to_string());
    })?)
}

/// Open the device called `name`. Which one it is is said with `--verbose`; that a GPU is there and cannot be used, always.
pub fn open_device(name: &str) -> Result<Choice> {
    let choice = Device::open(name)?;
    if is_verbose() {
        say_device(&choice);
    } else if name == "auto" && choice.device == Device::Cpu && cuda::devices().is_ok_and(|all| !all.is_empty()) {
        warn(&format!("the GPU is not used: {}", choice.reason));
    }
    choice.device.take_notes().iter().for_each(|n| note(&format!("note: {n}")));
    Ok(choice)
}

/// As [`open_device`], for commands that are about devices: which one it is and why is said in any case.
pub fn open_device_named(name: &str) -> Result<Choice> {
    let choice = Device::open(name)?;
    say_device(&choice);
    choice.device.take_notes().iter().for_each(|n| note(&format!("note: {n}")));
    Ok(choice)
}

fn say_device(choice: &Choice) {
    note(&format!("device: {} ({})", choice.device, choice.reason));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_words() {
        assert_eq!(wrapped("short", 60), "short");
        let text = "note: the file has more words than fit, and a/very/long/path/that/has/no/space/in/it/at/all to end";
        for width in [30, 40, 60, 80] {
            let lines = wrapped(text, width);
            for line in lines.lines() {
                assert!(line.chars().count() <= width || !line.trim().contains(' '), "{width}: {line}");
            }
            assert_eq!(lines.split_whitespace().collect::<Vec<_>>(), text.split(' ').collect::<Vec<_>>());
            assert!(lines.lines().skip(1).all(|l| l.starts_with("  ") && !l.starts_with("   ")), "{lines}");
        }
        assert_eq!(wrapped("  a bb\nccc", 7), "  a bb\nccc");
        // Columns that are apart stay apart.
        assert_eq!(wrapped("  1 s  loss 2", 60), "  1 s  loss 2");
    }
}
