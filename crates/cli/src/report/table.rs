//! Tables: Markdown for files and pipes, fitted to the width on a terminal.

use comfy_table::{CellAlignment, ContentArrangement, TableComponent, presets};
use console::{Term, measure_text_width};

use super::in_one_line;

/// Which way a column leans.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows of cells under named columns.
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

    /// As stdout wants it: drawn on a terminal, else as Markdown.
    pub fn shown(&self) -> String {
        let out = Term::stdout();
        if out.is_term() { self.drawn(usize::from(out.size().1)) } else { self.render() }
    }

    /// As Markdown.
    pub fn render(&self) -> String {
        let widths = self.widths();
        let line = |cells: &[String]| {
            let padded = cells.iter().zip(&widths).zip(&self.columns).map(|((c, &w), (_, a))| match a {
                Align::Left => format!("{c:<w$}"),
                Align::Right => format!("{c:>w$}"),
            });
            format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
        };
        let rule = widths.iter().zip(&self.columns).map(|(&w, (_, a))| match a {
            Align::Left => "-".repeat(w),
            Align::Right => "-".repeat(w - 1) + ":",
        });
        let mut out = line(&self.names()) + &line(&rule.collect::<Vec<_>>());
        self.rows.iter().for_each(|r| out += &line(r));
        out
    }

    fn names(&self) -> Vec<String> {
        self.columns.iter().map(|c| c.0.clone()).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |i: usize| {
            let cells = self.rows.iter().map(|r| r[i].chars().count());
            cells.chain([self.columns[i].0.chars().count(), 3]).max().unwrap_or(3)
        };
        (0..self.columns.len()).map(width).collect()
    }

    /// Under a rule, in `width` columns. A table that is too wide is turned if that fits, so that no word is broken.
    fn drawn(&self, width: usize) -> String {
        let turned = || {
            let mut rows = vec![self.names()];
            rows.extend(self.rows.iter().cloned());
            let column = |i: usize| rows.iter().map(|r| r[i].clone()).collect::<Vec<_>>();
            let aligns = vec![Align::Left; rows.len()];
            fitted(None, &(0..self.columns.len()).map(column).collect::<Vec<_>>(), &aligns, width)
        };
        let aligns: Vec<Align> = self.columns.iter().map(|c| c.1).collect();
        let upright = |width| fitted(Some(self.names()), &self.rows, &aligns, width);
        let widest = |text: &str| text.lines().map(measure_text_width).max().unwrap_or(0);
        let natural = upright(usize::from(u16::MAX));
        if widest(&natural) <= width {
            return natural;
        }
        let turned = turned();
        if widest(&turned) <= width { turned } else { upright(width) }
    }
}

fn fitted(head: Option<Vec<String>>, rows: &[Vec<String>], aligns: &[Align], width: usize) -> String {
    let mut table = comfy_table::Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    if let Some(head) = head {
        table.set_header(head);
        for rule in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
            table.set_style(rule, '─');
        }
    }
    let lean = |a: &Align| if *a == Align::Left { CellAlignment::Left } else { CellAlignment::Right };
    table.add_rows(rows.iter().cloned());
    for (column, align) in table.column_iter_mut().zip(aligns) {
        column.set_cell_alignment(lean(align));
        column.set_padding((0, 1));
    }
    table.lines().map(|l| l.trim_end().to_string() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_markdown() {
        let mut t = Table::new(&[("op", Align::Left), ("ms", Align::Right)]);
        t.row(vec!["add".into(), "1.25".into()]);
        t.row(vec!["mean²".into(), "10".into()]);
        assert_eq!(t.render(), "| op    |   ms |\n| ----- | ---: |\n| add   | 1.25 |\n| mean² |   10 |\n");
        assert_eq!(t.drawn(80), "op       ms\n────────────\nadd    1.25\nmean²    10\n");
    }

    /// One row of thirteen columns reads downwards; many rows are kept in columns, broken if need be.
    #[test]
    fn wide_tables_fit_the_terminal() {
        let names: Vec<String> = (0..13).map(|i| format!("column {i}")).collect();
        let heads: Vec<(&str, Align)> = names.iter().map(|n| (n.as_str(), Align::Right)).collect();
        for rows in [1, 3, 30] {
            let mut t = Table::new(&heads);
            (0..rows).for_each(|_| t.row(vec!["0.1234".to_string(); 13]));
            for width in [60, 80] {
                let drawn = t.drawn(width);
                assert!(drawn.lines().all(|l| measure_text_width(l) <= width), "{width}:\n{drawn}");
                assert_eq!(rows <= 3, drawn.lines().count() == 13, "{width}, {rows}:\n{drawn}");
            }
        }
    }
}
