//! What the self-test found: the worst of each value of each op, and every check that failed.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::report::{Align, Table};

/// How well a value agreed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Result {
    /// An error that must not exceed its bound.
    Error(f64),
    /// Whether all bits are equal.
    SameBits(bool),
}

impl Result {
    fn passes(self, bound: f64) -> bool {
        match self {
            Result::Error(e) => e <= bound, // NaN never passes
            Result::SameBits(same) => same,
        }
    }

    fn worse(self, other: Result) -> Result {
        match (self, other) {
            (Result::Error(a), Result::Error(b)) if a.is_nan() || a >= b => Result::Error(a),
            (Result::SameBits(a), Result::SameBits(b)) => Result::SameBits(a && b),
            (_, other) => other,
        }
    }

    fn text(self) -> String {
        match self {
            Result::Error(0.0) => "0".into(),
            Result::Error(e) => format!("{e:.1e}"),
            Result::SameBits(true) => "same".into(),
            Result::SameBits(false) => "differ".into(),
        }
    }
}

/// One kind of check: a column of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    /// The largest error that passes; 0 where bits must be equal.
    pub bound: f64,
}

#[derive(Debug, Serialize)]
struct Worst {
    #[serde(flatten)]
    check: Check,
    worst: Result,
}

/// All checks of one value of one op.
#[derive(Debug, Serialize)]
pub struct Row {
    op: String,
    value: String,
    pass: bool,
    checks: Vec<Worst>,
}

#[derive(Default)]
pub struct Findings {
    rows: Vec<Row>,
    failures: Vec<String>,
    cases: BTreeSet<(String, String)>,
}

impl Findings {
    /// Note how `value` of the case `label` of `op` did in one check.
    pub fn note(&mut self, op: &str, label: &str, value: &str, check: Check, found: Result) {
        self.cases.insert((op.into(), label.into()));
        let pass = found.passes(check.bound);
        if !pass {
            let against = if check.bound > 0.0 { format!(", the bound is {:.0e}", check.bound) } else { String::new() };
            self.failures.push(format!("FAIL {op} {label}: {value}, {}: {}{against}", check.name, found.text()));
        }
        let at = self.rows.iter().position(|r| r.op == op && r.value == value).unwrap_or_else(|| {
            self.rows.push(Row { op: op.into(), value: value.into(), pass: true, checks: Vec::new() });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.pass &= pass;
        match row.checks.iter_mut().find(|w| w.check.name == check.name) {
            Some(w) => w.worst = w.worst.worse(found),
            None => row.checks.push(Worst { check, worst: found }),
        }
    }

    /// Note a case that did not run.
    pub fn broken(&mut self, op: &str, label: &str, why: &str) {
        self.cases.insert((op.into(), label.into()));
        self.failures.push(format!("FAIL {op} {label}: {why}"));
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    pub fn cases(&self) -> usize {
        self.cases.len()
    }

    pub fn ops(&self) -> usize {
        self.cases.iter().map(|c| &c.0).collect::<BTreeSet<_>>().len()
    }

    /// Ops in the order they were checked, a line for each value.
    pub fn table(&self) -> Table {
        let mut names: Vec<&str> = Vec::new();
        for w in self.rows.iter().flat_map(|r| &r.checks) {
            if !names.contains(&w.check.name) {
                names.push(w.check.name);
            }
        }
        let mut columns = vec![("op", Align::Left), ("cases", Align::Right), ("value", Align::Left)];
        columns.extend(names.iter().map(|n| (*n, Align::Right)));
        columns.push(("result", Align::Left));
        let mut table = Table::new(&columns);
        let mut ops: Vec<&str> = self.rows.iter().map(|r| r.op.as_str()).collect();
        let mut seen = BTreeSet::new();
        ops.retain(|o| seen.insert(*o));
        for op in ops {
            let cases = self.cases.iter().filter(|c| c.0 == op).count();
            let mut rows: Vec<&Row> = self.rows.iter().filter(|r| r.op == op).collect();
            rows.sort_by_key(|r| r.value != "output"); // the output first, then gradients as they came
            for (i, r) in rows.into_iter().enumerate() {
                let (name, count) = if i == 0 { (op.to_string(), cases.to_string()) } else { Default::default() };
                let mut cells = vec![name, count, r.value.clone()];
                cells.extend(
                    names.iter().map(|n| {
                        r.checks.iter().find(|w| w.check.name == *n).map(|w| w.worst.text()).unwrap_or_default()
                    }),
                );
                cells.push(if r.pass { "PASS" } else { "FAIL" }.into());
                table.row(cells);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: Check = Check { name: "f32", bound: 1e-4 };

    #[test]
    fn the_worst_is_kept_and_nan_never_passes() {
        let mut f = Findings::default();
        f.note("add", "a", "output", F32, Result::Error(1e-6));
        f.note("add", "b", "output", F32, Result::Error(2e-6));
        f.note("add", "c", "output", F32, Result::Error(1e-7));
        assert!(f.failures().is_empty() && f.rows()[0].checks[0].worst == Result::Error(2e-6));
        f.note("add", "d", "output", F32, Result::Error(f64::NAN));
        f.note("add", "e", "output", F32, Result::Error(1e-7));
        assert_eq!(f.failures().len(), 1);
        assert!(!f.rows()[0].pass && f.table().render().contains("NaN"));
        assert_eq!((f.cases(), f.ops()), (5, 1));
    }

    #[test]
    fn one_differing_bit_fails() {
        let mut f = Findings::default();
        f.note("add", "a", "output", F32, Result::SameBits(false));
        f.note("add", "a", "output", F32, Result::SameBits(true));
        assert!(!f.rows()[0].pass && f.failures().len() == 1 && f.table().render().contains("differ"));
    }
}
