//! Why a command stopped: what the user reads, and the exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use console::style;
use tweedie_engine::Error;

use crate::report::{message, terminal};

pub type Result<T> = std::result::Result<T, Failure>;

/// Whose fault it is: the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The reader of our output went away, as `head` does: not a failure.
    Silent = 0,
    /// The user's input, or a machine that lacks what was asked for.
    Input = 1,
    /// Ours.
    Ours = 2,
    /// Stopped by Ctrl-C; what was to say has been said.
    Interrupted = 130,
}

/// An error with its causes and the command that helps.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    what: String,
    causes: Vec<String>,
    hint: Option<String>,
}

impl Failure {
    /// The user asked for something that cannot be.
    pub fn input(what: impl Into<String>) -> Failure {
        Failure { kind: Kind::Input, what: what.into(), causes: Vec::new(), hint: None }
    }

    /// Something of ours does not work.
    pub fn ours(what: impl Into<String>) -> Failure {
        Failure { kind: Kind::Ours, ..Failure::input(what) }
    }

    /// Stopped by Ctrl-C, after everything was saved.
    pub fn interrupted() -> Failure {
        Failure { kind: Kind::Interrupted, ..Failure::input("interrupted") }
    }

    /// Whether it was stopped by Ctrl-C.
    pub fn is_interrupted(&self) -> bool {
        self.kind == Kind::Interrupted
    }

    /// What went wrong and why, in one line, for somebody else's messages.
    pub fn in_short(&self) -> String {
        std::iter::once(&self.what).chain(&self.causes).map(String::as_str).collect::<Vec<_>>().join("; ")
    }

    /// Add the next cause.
    pub fn cause(mut self, why: impl Into<String>) -> Failure {
        self.causes.push(why.into());
        self
    }

    /// The command to try.
    pub fn hint(mut self, command: impl Into<String>) -> Failure {
        self.hint = Some(command.into());
        self
    }

    /// Print it and give the exit code.
    pub fn show(&self) -> ExitCode {
        if !matches!(self.kind, Kind::Silent | Kind::Interrupted) {
            let [error, hint] = ["error:", "hint:"].map(|word| style(word).for_stderr().bold());
            let text = self.to_string().replacen("error:", &error.red().to_string(), 1);
            let text = match text.rsplit_once("\n\nhint:") {
                Some((before, words)) => format!("{before}\n\n{}{words}", hint.cyan()),
                None => text,
            };
            terminal::say(&text);
        }
        ExitCode::from(self.kind as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        // They quote files and names, which may hold anything.
        write!(f, "error: {}", message(&self.what))?;
        for c in &self.causes {
            write!(f, "\ncause: {}", message(c))?;
        }
        match &self.hint {
            Some(h) => write!(f, "\n\nhint: {}", message(h)),
            None => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        tweedie::Error::from(e).into()
    }
}

impl From<tweedie::Error> for Failure {
    fn from(e: tweedie::Error) -> Failure {
        use tweedie::Error as Library;
        let hint = e.hint();
        let failure = match e {
            Library::Interrupted => Failure::interrupted(),
            Library::Stopped { source, saved } => return Failure::from(*source).cause(saved),
            Library::Misfit { what, .. } => Failure::input(what),
            Library::NoRecipe { name, recipes, source } => {
                Failure::input(format!("'{name}' is neither a recipe nor a readable file"))
                    .cause(source.to_string())
                    .cause(format!("the recipes are {recipes}"))
            }
            Library::Engine(e) => of_engine(e),
            e => Failure::input(e.to_string()),
        };
        Failure { hint, ..failure }
    }
}

fn of_engine(e: Error) -> Failure {
    match e {
        Error::NoCuda(why) => Failure::input("CUDA is not usable on this machine").cause(why),
        Error::Op { op: "device", message } | Error::Comm { op: "ranks", message } => Failure::input(message),
        Error::OutOfMemory { .. } | Error::Comm { .. } => Failure::input(e.to_string()),
        Error::Op { .. } | Error::Cuda { .. } | Error::Compile { .. } => Failure::ours(e.to_string()),
    }
}

impl From<tweedie::generate::Refusal> for Failure {
    fn from(refusal: tweedie::generate::Refusal) -> Failure {
        Failure::input(refusal.to_string())
    }
}

impl From<tweedie::data::DataError> for Failure {
    fn from(e: tweedie::data::DataError) -> Failure {
        tweedie::Error::from(e).into()
    }
}

impl From<tweedie_figures::Error> for Failure {
    fn from(e: tweedie_figures::Error) -> Failure {
        Failure::input(e.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        let f = Failure::input("the output cannot be written").cause(e.to_string());
        if e.kind() == io::ErrorKind::BrokenPipe { Failure { kind: Kind::Silent, ..f } } else { f }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(e: serde_json::Error) -> Failure {
        Failure::ours("the result has no JSON form").cause(e.to_string())
    }
}

impl From<clap::Error> for Failure {
    fn from(e: clap::Error) -> Failure {
        let text = e.render().to_string();
        let usage = text.lines().find_map(|l| l.strip_prefix("Usage: ")).unwrap_or("tweedie");
        let command: Vec<&str> = usage.split(' ').take_while(|w| !w.starts_with(['[', '<', '-'])).collect();
        let hint = format!("{} --help", command.join(" "));
        if e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return Failure::input(format!("{} needs a command", command.join(" "))).hint(hint);
        }
        // clap's words before its usage block: "error: what", sometimes with tips and lists on further lines.
        let words = text.split("\n\nUsage:").next().unwrap_or_default();
        let words = words.split("\n\nFor more information").next().unwrap_or_default();
        let mut lines = words.trim().lines().map(str::trim).filter(|l| !l.is_empty());
        let first = lines.next().unwrap_or("the arguments cannot be read");
        let f = Failure::input(first.strip_prefix("error: ").unwrap_or(first)).hint(hint);
        lines.fold(f, |f, l| f.cause(l.strip_prefix("tip: ").unwrap_or(l)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_error_causes_blank_line_hint() {
        let f = Failure::input("no").cause("because").cause("of that").hint("tweedie devices");
        assert_eq!(f.to_string(), "error: no\ncause: because\ncause: of that\n\nhint: tweedie devices");
        assert_eq!(Failure::ours("no").to_string(), "error: no");
    }

    #[test]
    fn a_missing_gpu_is_input_and_a_failed_call_is_ours() {
        assert_eq!(Failure::from(Error::NoCuda("x".into())).kind, Kind::Input);
        assert_eq!(Failure::from(Error::Cuda { call: "f", message: "x".into(), sticky: false }).kind, Kind::Ours);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).kind, Kind::Silent);
    }
}
