//! A training as it is seen: on a terminal a redrawn line with a bar, and lines that stay for evaluations; elsewhere plain lines, few
//! enough to read.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use console::{measure_text_width, style};
use indicatif::{ProgressBar, ProgressStyle};
use tweedie::Session;
use tweedie::data::Task;
use tweedie::progress::{Progress, Work};
use tweedie::train::{Evaluation, Event, Metric, SkippedEvent, StepEvent};
use tweedie_engine::Device;

use crate::report::{self, Sparse, note, terminal};

/// Evaluations that have a line each; of more than these only some have one.
const EVALUATIONS: usize = 50;

/// Shows one training.
#[derive(Clone)]
pub struct View(Rc<RefCell<Shown>>);

struct Shown {
    /// What examples are called.
    unit: &'static str,
    epochs: usize,
    total: usize,
    gpu: bool,
    began: Instant,
    bar: Option<ProgressBar>,
    /// Of the terminal, when the bar was last drawn.
    columns: usize,
    drawn: Instant,
    /// What it does beside steps.
    stage: Option<String>,
    losses: Vec<f32>,
    /// The last step that was told, and when.
    last: Option<(StepEvent, Instant)>,
    lines: Sparse,
    evaluations: usize,
    evaluation_lines: Sparse,
    /// Only the bar: another report tells of evaluations.
    bar_only: bool,
    /// Seconds of what follows this training.
    later: Box<dyn Fn(&StepEvent) -> f64>,
}

impl View {
    pub fn new(session: &Session) -> View {
        let t = session.trainer();
        let columns = terminal::width();
        let bar = report::redrawn(&template(columns));
        if let Some(bar) = &bar {
            bar.set_length(t.total_steps() as u64);
            bar.set_position(t.step() as u64);
        }
        let now = Instant::now();
        View(Rc::new(RefCell::new(Shown {
            unit: if t.trained.task() == Task::Text { "texts" } else { "images" },
            epochs: t.config.train.epochs,
            total: t.total_steps(),
            gpu: t.trained.model.device() != Device::Cpu,
            began: now,
            bar,
            columns,
            drawn: now,
            stage: None,
            losses: Vec::new(),
            last: None,
            lines: Sparse::every(1.0),
            evaluations: 0,
            evaluation_lines: Sparse::every(0.0),
            bar_only: false,
            later: Box::new(|_| 0.0),
        })))
    }

    /// One training of several: `later` says how long those after it take, and evaluations are not told.
    pub fn of_several(session: &Session, later: impl Fn(&StepEvent) -> f64 + 'static) -> View {
        let view = View::new(session);
        {
            let mut shown = view.0.borrow_mut();
            (shown.bar_only, shown.later, shown.lines) = (true, Box::new(later), Sparse::every(10.0));
        }
        view
    }

    /// What happened.
    pub fn tell(&self, event: &Event) {
        self.0.borrow_mut().tell(event);
    }

    /// How far it has come.
    pub fn at(&self, p: Progress) {
        self.0.borrow_mut().at(p);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        terminal::is_at("step");
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Shown {
    fn tell(&mut self, event: &Event) {
        match event {
            Event::Step(s) => self.step(s),
            Event::Eval(e) => self.evaluation(e),
            Event::Skipped(s) => told_skipped(s),
            Event::Warning(w) => report::warn(&w.message),
            Event::Saved(s) => terminal::detail(&format!("{}saved {}", self.clock(), s.path)),
        }
    }

    fn clock(&self) -> String {
        format!("{:>5} s  ", self.began.elapsed().as_secs())
    }

    fn step(&mut self, s: &StepEvent) {
        let first = self.losses.is_empty();
        self.losses.push(s.loss);
        let share = s.step as f64 / self.total.max(1) as f64;
        let plain = self.bar.is_none() && (first || self.lines.due(share) || s.step == self.total);
        if terminal::is_verbose() || plain {
            note(&self.line(s, first));
        }
        self.last = Some((s.clone(), Instant::now()));
        self.redraw();
    }

    /// A step in a line.
    fn line(&self, s: &StepEvent, first: bool) -> String {
        let more = match terminal::is_verbose() {
            true => format!("  lr {:.1e}  |g| {:.2}  waited {:.0} %", s.lr, s.grad_norm, 100.0 * s.waited),
            false => String::new(),
        };
        // The first step tells nothing of those to come.
        let left = if first { String::new() } else { format!("  {} left", report::duration(s.eta + (self.later)(s))) };
        let skipped = if s.skipped > 0 { format!("  {} steps skipped", s.skipped) } else { String::new() };
        format!(
            "{}epoch {:>6.2}  step {:>6}  loss {:.4}{more}  {:.0} {}/s{left}{skipped}",
            self.clock(),
            s.epoch,
            s.step,
            s.loss,
            s.images_per_second,
            self.unit
        )
    }

    fn evaluation(&mut self, e: &Evaluation) {
        self.evaluations += 1;
        let share = e.step as f64 / self.total.max(1) as f64;
        let due = self.evaluation_lines.due(share) || self.evaluations <= EVALUATIONS || e.step == self.total;
        if !self.bar_only && due {
            let (best, words) = (is_best(e), evaluation(e));
            let line = format!("{}epoch {:>3.0}  {words}", self.clock(), e.epoch);
            let shown = if best { style(line).for_stderr().green() } else { style(line).for_stderr() };
            terminal::tell(&shown.to_string());
        }
    }

    fn at(&mut self, p: Progress) {
        let counted = |what: &str| if p.of > 0 { format!("{what} {}/{}", p.done, p.of) } else { what.to_string() };
        let (stage, waits) = match p.work {
            Work::FirstBatch => (Some("reading the first batch".to_string()), "step"),
            Work::FirstStep if self.gpu => (Some("first step: kernels are compiled or loaded".into()), "step"),
            Work::FirstStep => (Some("first step".into()), "step"),
            Work::Steps => (None, "step"),
            Work::Evaluation => (Some(counted("evaluating")), "evaluation"),
            Work::Checkpoint => (Some("writing a checkpoint".into()), "checkpoint"),
            Work::Clip => (Some(counted("CLIP")), "evaluation"),
        };
        terminal::is_at(waits);
        if let (Some(stage), None, None) = (&stage, &self.bar, &self.last) {
            // A GPU may be at this for a minute.
            if self.gpu && p.work == Work::FirstStep { note(stage) } else { terminal::detail(stage) }
        }
        if let (Work::Steps, Some(bar)) = (p.work, &self.bar) {
            bar.set_position(p.done as u64);
        }
        let changed = self.stage.is_some() != stage.is_some();
        self.stage = stage;
        if changed || self.drawn.elapsed() > Duration::from_millis(100) {
            self.redraw();
        }
    }

    fn redraw(&mut self) {
        self.drawn = Instant::now();
        let columns = terminal::width();
        let Some(bar) = &self.bar else { return };
        if columns != std::mem::replace(&mut self.columns, columns) {
            let style =
                ProgressStyle::with_template(&template(columns)).unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style.progress_chars(report::CHARS));
        }
        bar.set_message(self.words(columns));
    }

    /// What stands beside the bar: as much as there is room for.
    fn words(&self, width: usize) -> String {
        let Some((s, told)) = &self.last else { return self.stage.clone().unwrap_or_default() };
        let left = (s.eta + (self.later)(s) - told.elapsed().as_secs_f64()).max(0.0);
        let (epoch, rate) = (format!("epoch {:.0}/{}", s.epoch.ceil(), self.epochs), s.images_per_second);
        let known = self.losses.len() > 1;
        let long = if known { format!("  {} left", report::duration(left)) } else { String::new() };
        let short = if known { format!("  {} left", brief(left)) } else { String::new() };
        let busy = match &self.stage {
            Some(stage) => stage.clone(),
            None => format!("{rate:.0} {}/s", self.unit),
        };
        let loss = |n: usize| format!("loss {:.3} {}", s.loss, sparkline(&self.losses, n));
        let choices = [
            format!("{epoch}  {}  {busy}{long}", loss(16)),
            format!("{epoch}  {}  {busy}{long}", loss(8)),
            format!("{epoch}  {}  {busy}{long}", loss(5)),
            format!("{}  {busy}{long}", loss(8)),
            format!("{}  {busy}{short}", loss(5)),
            format!("loss {:.2}  {busy}{short}", s.loss),
        ];
        let fits = |c: &&String| measure_text_width(c) <= room(width);
        let chosen = choices.iter().find(fits);
        chosen.cloned().unwrap_or_else(|| format!("loss {:.2}{short}", s.loss))
    }
}

/// Columns of the bar on a terminal of so many.
fn bar_columns(columns: usize) -> usize {
    (columns / 4).saturating_sub(7).clamp(8, 30)
}

/// Columns beside the bar and the percentage.
fn room(columns: usize) -> usize {
    columns.saturating_sub(bar_columns(columns) + 10 + terminal::FREE)
}

fn template(columns: usize) -> String {
    format!("{{spinner:.cyan}} {{bar:{}.cyan/dim}} {{percent:>3}} %  {{msg}}", bar_columns(columns))
}

/// Seconds in few characters: "42s", "3m05s", "2h10m".
fn brief(seconds: f64) -> String {
    report::duration(seconds).replace(" min", "m").replace(" s", "s").replace(" h", "h").replace(' ', "")
}

/// Means of `n` equal parts of values as bars from the lowest to the highest.
fn sparkline(values: &[f32], n: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let n = n.min(values.len());
    let mean = |k: usize| {
        let part = &values[k * values.len() / n..(k + 1) * values.len() / n];
        part.iter().sum::<f32>() / part.len().max(1) as f32
    };
    let means: Vec<f32> = (0..n).map(mean).collect();
    let finite = means.iter().copied().filter(|m| m.is_finite());
    let (low, high) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), m| (l.min(m), h.max(m)));
    let bar = |m: &f32| match m.is_finite() {
        true => BARS[((m - low) / (high - low).max(f32::MIN_POSITIVE) * 7.0).round().clamp(0.0, 7.0) as usize],
        false => '×',
    };
    means.iter().map(bar).collect()
}

/// Whether none before was better.
fn is_best(e: &Evaluation) -> bool {
    [Some(e.score), e.ema].iter().flatten().any(|m| m.value == e.best.value)
}

fn evaluation(e: &Evaluation) -> String {
    let value = |m: &Metric| match m.name {
        Metric::TOP1 => format!("{:.2} %", 100.0 * m.value),
        _ => format!("{:.3}", m.value),
    };
    let ema = e.ema.map_or(String::new(), |m| format!(", averaged {}", value(&m)));
    let exact = e.exact.map_or(String::new(), |x| format!(", exact {:.1} %", 100.0 * x));
    let best = if is_best(e) { "★ best".into() } else { format!("(best {})", value(&e.best)) };
    format!("{}{ema}{exact}  {best}", e.score)
}

/// Name examples that were left out or cut.
pub fn told_skipped(s: &SkippedEvent) {
    if !s.errors.is_empty() {
        report::warn(&left_out(s));
    }
    if !s.cut_at.is_empty() {
        let head = format!("texts of too many tokens, cut {} times so far, such as:", s.cut);
        note(&format!("{head}\n{}", s.cut_at.join("\n")));
    }
}

/// How many examples were left out, and those of the new ones that are among the first few of the run.
fn left_out(s: &SkippedEvent) -> String {
    const NAMED: usize = 5;
    let before = s.examples.saturating_sub(s.errors.len());
    let named = &s.errors[..s.errors.len().min(NAMED.saturating_sub(before))];
    let more = match (named.len(), s.errors.len() - named.len()) {
        (_, 0) => ":".into(),
        (0, _) => ", all named in metrics.jsonl".into(),
        (_, more) => format!(", {more} more than these (metrics.jsonl names all):"),
    };
    let kind = if s.validation { "validation " } else { "" };
    let noun = if s.examples == 1 { "example" } else { "examples" };
    let names: String = named.iter().map(|e| format!("\n{e}")).collect();
    format!("{} {kind}{noun} left out so far{more}{names}", s.examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(losses: usize) -> Shown {
        let event = StepEvent {
            step: 12_345,
            epoch: 17.3,
            loss: 2.345_67,
            lr: 1e-3,
            grad_norm: 1.0,
            skipped: 0,
            images_per_second: 12_345.6,
            waited: 0.0,
            eta: 123_456.0,
        };
        Shown {
            unit: "images",
            epochs: 300,
            total: 100_000,
            gpu: false,
            began: Instant::now(),
            bar: None,
            columns: 80,
            drawn: Instant::now(),
            stage: None,
            losses: (0..losses).map(|i| 3.0 - i as f32 / losses as f32).collect(),
            last: Some((event, Instant::now())),
            lines: Sparse::every(1.0),
            evaluations: 0,
            evaluation_lines: Sparse::every(0.0),
            bar_only: false,
            later: Box::new(|_| 0.0),
        }
    }

    #[test]
    fn the_line_fits_every_width_and_says_more_where_there_is_room() {
        let s = shown(40);
        let at = |width: usize| {
            let words = s.words(width);
            assert!(measure_text_width(&words) <= room(width), "{width}: {words}");
            words
        };
        assert_eq!(at(60), "loss 2.35  12346 images/s  34h17m left");
        assert_eq!(at(80), "loss 2.346 █▇▆▅▄▃▂▁  12346 images/s  34 h 17 min left");
        assert_eq!(at(120), "epoch 18/300  loss 2.346 ██▇▇▆▆▅▅▄▄▃▃▂▂▁▁  12346 images/s  34 h 17 min left");
        (60..200).for_each(|w| drop(at(w)));
        // After the first step nothing is known of the time.
        assert!(!shown(1).words(120).contains("left"));
        let mut busy = shown(40);
        busy.stage = Some("evaluating 128/359".into());
        assert!(busy.words(80).contains("evaluating 128/359") && !busy.words(80).contains("images/s"));
    }

    #[test]
    fn sparklines_follow_the_means() {
        assert_eq!(sparkline(&[1.0, 1.0, 0.0, 0.0], 2), "█▁");
        assert_eq!(sparkline(&[1.0], 8), "▁");
        assert_eq!(sparkline(&[], 8), "");
        assert_eq!(sparkline(&[0.0, f32::NAN, 1.0], 3), "▁×█");
        assert_eq!((brief(42.0), brief(185.0), brief(7800.0)), ("42s".into(), "3m05s".into(), "2h10m".into()));
    }

    #[test]
    fn the_best_evaluation_is_marked() {
        let top1 = Metric::top1;
        let mut e = Evaluation {
            step: 10,
            epoch: 1.0,
            score: top1(0.5),
            ema: Some(top1(0.6)),
            best: top1(0.6),
            nll: None,
            exact: None,
            examples: 9,
        };
        assert_eq!(evaluation(&e), "top-1 50.00 %, averaged 60.00 %  ★ best");
        e.best = top1(0.7);
        assert_eq!(evaluation(&e), "top-1 50.00 %, averaged 60.00 %  (best 70.00 %)");
    }

    #[test]
    fn the_first_few_left_out_are_named() {
        let errors = |n: usize| (0..n).map(|i| format!("{i}.png: torn")).collect::<Vec<_>>();
        let event =
            |examples, errors| SkippedEvent { step: 1, validation: true, examples, cut: 0, errors, cut_at: vec![] };
        assert_eq!(left_out(&event(1, errors(1))), "1 validation example left out so far:\n0.png: torn");
        let many = left_out(&event(7, errors(7)));
        assert!(many.contains("2 more than these") && many.lines().count() == 6, "{many}");
        assert!(left_out(&event(20, errors(3))).ends_with("all named in metrics.jsonl"));
    }
}
