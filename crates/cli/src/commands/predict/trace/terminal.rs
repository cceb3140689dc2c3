//! A trace in the terminal: on a screen tokens are replaced in place, elsewhere a line per step.

use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;
use tweedie::generate::Token;

use super::{Step, Trace};
use crate::failure::Result;
use crate::report;

/// Time between two steps on a screen.
const PAUSE: Duration = Duration::from_millis(150);

/// Bold where the model is sure, faint where it is not.
fn styled(text: &str, p: f64, colour: bool) -> String {
    let text = report::in_one_line(text);
    let code = match p {
        _ if !colour => return text.into_owned(),
        p if p > 0.9 => "1",
        p if p > 0.5 => "0",
        _ => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// A token as it is shown: a line end as a mark, so that it neither breaks the line nor looks like two characters.
fn word(t: &Token) -> &str {
    match t.text.as_deref() {
        None => "·",
        Some("\n" | "\\n") => "↵",
        Some(text) => text,
    }
}

/// A class and its rivals: as many as have a chance, and as fit into `room`.
fn rivals(top: &[(String, f64)], room: usize) -> String {
    let mut out = String::new();
    for (name, p) in top.iter().filter(|(_, p)| *p >= 0.005) {
        let more = format!("{name} {:.0} %", 100.0 * p);
        match out.is_empty() {
            true => out = more,
            false if out.chars().count() + 2 + more.chars().count() > room => break,
            false => out += &format!("  {more}"),
        }
    }
    out
}

fn line(s: &Step, one: bool, colour: bool, room: usize) -> String {
    if one {
        return styled(&rivals(&s.tokens[0].top, room), s.tokens[0].p, colour);
    }
    // Characters stand next to each other, words apart.
    let chars = s.tokens.iter().map(word).all(|w| w.chars().count() == 1 || w.starts_with(['<', '\\']));
    let words: Vec<String> = s.tokens.iter().map(|t| styled(word(t), t.p, colour)).collect();
    words.join(if chars { "" } else { " " })
}

/// Columns of the screen; no end of them elsewhere.
fn width() -> usize {
    if stdout().is_terminal() { console::Term::stdout().size().1.into() } else { usize::MAX }
}

/// Lines that `text` takes on a screen.
fn height(text: &str) -> usize {
    text.chars().count() / width().max(1) + 1
}

pub fn show(trace: &Trace) -> Result<()> {
    let one = trace.steps.first().is_some_and(|s| s.tokens.len() == 1);
    let live = stdout().is_terminal() && !one;
    let colour = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if live {
        // Room for the tallest step, then back up: from here on each step is drawn over the last.
        let room = trace.steps.iter().map(|s| height(&line(s, one, false, 0)) + 2).max().unwrap_or(1);
        report::draw(&format!("{}\x1b[{room}A\x1b[s", "\n".repeat(room)))?;
    }
    for (i, s) in trace.steps.iter().enumerate() {
        let entropy = s.tokens.iter().map(|t| t.entropy).sum::<f64>() / s.tokens.len().max(1) as f64;
        let head = format!("step {:>3}  t {:>4}  ᾱ {:.3}  entropy {entropy:.2} nats", i + 1, s.t, s.alpha_bar);
        let text = line(s, one, colour, width().saturating_sub(head.chars().count() + 2));
        if live {
            report::draw(&format!("\x1b[u\x1b[J{head}\n{text}\n"))?;
            let _ = stdout().flush();
            std::thread::sleep(PAUSE);
        } else {
            report::draw(&format!("{head}  {text}\n"))?;
        }
    }
    report::print(&format!("\n{}\n", trace.result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_of_characters_are_marks_on_one_line() {
        let token = |text: &str| Token { text: Some(text.into()), p: 1.0, entropy: 0.0, top: vec![] };
        let masked = Token { text: None, p: 0.0, entropy: 0.0, top: vec![] };
        let step = |tokens| Step { t: 1, alpha_bar: 1.0, tokens };
        // As tokenizers show it, and as it is.
        let s = step(vec![token("a"), token("\\n"), token("\n"), masked, token("b")]);
        assert_eq!(line(&s, false, false, 80), "a↵↵·b");
        assert_eq!(line(&step(vec![token("a"), token("dog"), token("\\n")]), false, false, 80), "a dog ↵");
    }
    #[test]
    fn rivals_without_a_chance_or_room_are_left_out() {
        let top = [("three", 0.6), ("nine", 0.3), ("two", 0.09), ("one", 0.001)].map(|(n, p)| (n.to_string(), p));
        assert_eq!(rivals(&top, usize::MAX), "three 60 %  nine 30 %  two 9 %");
        assert_eq!(rivals(&top, 21), "three 60 %  nine 30 %");
        assert_eq!(rivals(&top, 3), "three 60 %", "the class itself is always there");
    }
}
