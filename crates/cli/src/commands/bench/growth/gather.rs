//! Series after series, point after point, each handed on as soon as it is there.

use super::child::Outcome;
use super::quantity::Quantity;
use super::{Curve, Report};
use crate::failure::Result;
use crate::report;

/// Why a series ends that the user stopped.
pub const INTERRUPTED: &str = "interrupted";
/// What is said of the series that is being measured: all that is left of it if the program is killed.
pub const UNFINISHED: &str = "unfinished";

/// A series to measure.
pub struct Growing {
    pub what: String,
    pub over: Quantity,
    pub values: Vec<usize>,
}

impl Growing {
    pub fn name(&self) -> String {
        format!("{} over {}", self.what, self.over.flag())
    }
}

/// What the last series of a report has got since it was handed on last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Point,
    /// Its end.
    Series(Quantity),
}

/// Measure all series into `report` and hand it to `keep` after every point and every series. Ends after the present point when
/// `stop` says so; then the answer is false.
pub fn all(
    report: &mut Report,
    series: &[Growing],
    mut measure: impl FnMut(&Growing, usize) -> Result<Outcome>,
    stop: impl Fn() -> bool,
    mut keep: impl FnMut(&Report, Kept) -> Result<()>,
) -> Result<bool> {
    for growing in series {
        if stop() {
            return Ok(false);
        }
        let at = report.curves.len();
        report.curves.push(Curve::new(&growing.what, growing.over));
        report.curves[at].stopped = Some(UNFINISHED.into());
        let mut why = None;
        for &value in &growing.values {
            if stop() {
                why = Some(INTERRUPTED.into());
                break;
            }
            match measure(growing, value)? {
                Outcome::Point(point) => {
                    report.curves[at].points.push(point);
                    report.curves[at].fit();
                    keep(report, Kept::Point)?;
                }
                Outcome::Stopped(reason) => {
                    why = Some(format!("at {value}: {reason}"));
                    break;
                }
                Outcome::Interrupted => {
                    why = Some(INTERRUPTED.into());
                    break;
                }
            }
        }
        report.curves[at].stopped = why;
        keep(report, Kept::Series(growing.over))?;
        if report.curves[at].is_interrupted() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// [`all`], and `show` what there is even if an error ended it: a point can have taken minutes, and a full disk should not cost
/// it.
pub fn all_and_show(
    report: &mut Report,
    series: &[Growing],
    measure: impl FnMut(&Growing, usize) -> Result<Outcome>,
    stop: impl Fn() -> bool,
    keep: impl FnMut(&Report, Kept) -> Result<()>,
    show: impl FnOnce(&Report) -> Result<()>,
) -> Result<bool> {
    let ended = all(report, series, measure, stop, keep);
    let shown = match ended.is_ok() || report.curves.iter().any(|c| !c.points.is_empty()) {
        true => show(report),
        false => Ok(()), // an error and nothing else
    };
    let finished = ended?;
    shown.map(|()| finished)
}

/// What to tell of it: a point, or why a series has ended early.
pub fn line(r: &Report, kept: Kept) -> Option<String> {
    let c = r.curves.last()?;
    let name = format!("{} over {}", c.what, c.over.flag());
    match kept {
        Kept::Point => {
            let p = c.points.last()?;
            Some(format!("{name} {}: {:.2} ms, {}", p.value, p.ms, report::bytes(p.peak as usize)))
        }
        Kept::Series(_) => c.stopped.as_ref().map(|why| format!("{name} stopped: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use serde_json::Value;

    use super::super::{Point, shown};
    use super::*;
    use crate::failure::Failure;

    fn empty() -> Report {
        Report {
            version: "0",
            preset: "digits".into(),
            device: "cpu".into(),
            threads: 1,
            batch: 4,
            steps: 8,
            repeats: 1,
            curves: Vec::new(),
        }
    }

    fn growing(what: &str) -> Growing {
        Growing { what: what.into(), over: Quantity::Batch, values: vec![1, 2, 4] }
    }

    fn point(value: usize) -> Outcome {
        let ms = value as f64;
        Outcome::Point(Point { value, ms, fastest: ms, slowest: ms, peak: (value << 20) as f64 })
    }

    /// Whenever the program dies, the files hold every point that it had measured before, and say that the series goes on.
    #[test]
    fn every_point_is_on_disk_before_the_next_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let measured = Cell::new(0);
        let lines = RefCell::new(Vec::new());
        let finished = all(
            &mut empty(),
            &[growing("train"), growing("sample")],
            |_, value| {
                if measured.get() > 0 {
                    let json = std::fs::read(dir.join("growth-digits.json")).unwrap();
                    let v: Value = serde_json::from_slice(&json).unwrap();
                    let curves = v["curves"].as_array().unwrap();
                    let points: usize = curves.iter().map(|c| c["points"].as_array().unwrap().len()).sum();
                    assert_eq!(points, measured.get());
                    let csv = std::fs::read_to_string(dir.join("growth-digits.csv")).unwrap();
                    assert_eq!(csv.lines().count(), 1 + measured.get());
                    let last = &curves[curves.len() - 1]["stopped"];
                    assert_eq!(last.as_str(), (measured.get() != 3).then_some(UNFINISHED));
                    assert_eq!(dir.join("growth-digits-batch-time.svg").exists(), measured.get() >= 3);
                }
                measured.set(measured.get() + 1);
                Ok(point(value))
            },
            || false,
            |r, kept| {
                lines.borrow_mut().extend(line(r, kept));
                shown::keep(r, kept, dir)
            },
        );
        assert!(finished.unwrap() && measured.get() == 6);
        assert_eq!(lines.borrow()[1], "train over batch 2: 2.00 ms, 2 MiB");
        assert_eq!(lines.borrow().len(), 6);
    }

    #[test]
    fn an_interruption_ends_after_the_present_point_and_marks_its_series() {
        let series = [growing("train"), growing("sample")];
        let measured = Cell::new(0);
        // Asked to stop while point `n` is measured; the point comes all the same unless the signal has ended it too.
        let stopped_in = |n: usize, lost: bool| {
            measured.set(0);
            let mut r = empty();
            let finished = all(
                &mut r,
                &series,
                |_, value| {
                    measured.set(measured.get() + 1);
                    Ok(if lost && measured.get() == n { Outcome::Interrupted } else { point(value) })
                },
                || measured.get() >= n,
                |_, _| Ok(()),
            );
            assert!(!finished.unwrap() && measured.get() == n);
            let of = |c: &Curve| (c.points.len(), c.stopped.clone());
            (r.curves.iter().map(of).collect::<Vec<_>>(), shown::markdown(&r))
        };
        let interrupted = Some(INTERRUPTED.to_string());
        let (curves, table) = stopped_in(2, false);
        assert_eq!(curves, [(2, interrupted.clone())]);
        assert!(table.contains("| 1 to 2 |") && table.contains("| interrupted |"), "{table}");
        assert_eq!(stopped_in(2, true).0, [(1, interrupted.clone())]);
        // A series that had its last point is whole, and the next is not begun.
        assert_eq!(stopped_in(3, false).0, [(3, None)]);
        assert_eq!(stopped_in(4, true).0, [(3, None), (0, interrupted)]);
    }

    #[test]
    fn a_point_that_fails_ends_its_series_alone() {
        let mut r = empty();
        let measure = |g: &Growing, value| match (g.what.as_str(), value) {
            ("train", 2) => Ok(Outcome::Stopped("no memory".into())),
            _ => Ok(point(value)),
        };
        let told = RefCell::new(Vec::new());
        let keep = |r: &Report, kept| {
            told.borrow_mut().extend(line(r, kept));
            Ok(())
        };
        assert!(all(&mut r, &[growing("train"), growing("sample")], measure, || false, keep).unwrap());
        assert_eq!(r.curves.iter().map(|c| c.points.len()).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(told.borrow()[1], "train over batch stopped: at 2: no memory");
    }

    /// What was measured before an error is shown, and the error is told all the same.
    #[test]
    fn an_error_does_not_hide_what_was_measured() {
        let series = [growing("train"), growing("sample")];
        // The point of the plan that fails, and that whose files cannot be written.
        let run = |broken: usize, unwritten: usize| {
            let (measured, kept, mut shown) = (Cell::new(0), Cell::new(0), None);
            let count = |n: &Cell<usize>, bad: usize| {
                n.set(n.get() + 1);
                if n.get() == bad { Err(Failure::ours(format!("number {bad}"))) } else { Ok(()) }
            };
            let ended = all_and_show(
                &mut empty(),
                &series,
                |_, value| count(&measured, broken).map(|()| point(value)),
                || false,
                |_, what| if what == Kept::Point { count(&kept, unwritten) } else { Ok(()) },
                |r| {
                    let curves = r.curves.iter().map(|c| (c.points.len(), c.stopped.clone()));
                    shown = Some(curves.collect::<Vec<_>>());
                    Ok(())
                },
            );
            (ended.map_err(|e| e.to_string()), shown)
        };
        let unfinished = || Some(UNFINISHED.to_string());
        assert_eq!(run(0, 0), (Ok(true), Some(vec![(3, None), (3, None)])));
        assert_eq!(run(5, 0), (Err("error: number 5".into()), Some(vec![(3, None), (1, unfinished())])));
        // The point is there, whatever became of its file.
        assert_eq!(run(0, 2), (Err("error: number 2".into()), Some(vec![(2, unfinished())])));
        assert_eq!(run(1, 0), (Err("error: number 1".into()), None));
    }
}
