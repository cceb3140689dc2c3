//! The report: one file with everything inside, readable without scripts, in light and dark.

use std::fmt::Write;

use tweedie::run_dir::Environment;

use super::plan::{Plan, Task};
use super::runs::Finished;
use super::scale::{TaskKind, name_of};
use super::section::{Grid, Section, with_spread};
use crate::failure::Result;
use crate::report::{self, Align};
use crate::shared::html::escape;

/// How the report came to be.
pub struct About {
    pub command: String,
    pub environment: Environment,
    /// Of the whole command.
    pub seconds: f64,
    /// Of these, for training.
    pub training: f64,
}

const STYLE: &str = include_str!("report.css");

/// The whole page.
pub fn page(about: &About, plan: &Plan, finished: &[Finished], sections: &[Section]) -> Result<String> {
    let mut h = String::new();
    let title = format!("Tweedie Discrete Diffusion at the scale of {}", name_of(plan.scale));
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        h,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p class=\"scale\">{1}</p>\n",
        escape(&title),
        escape(&plan.said())
    );
    how(&mut h, plan)?;
    if sections.len() > 1 {
        let link = |s: &Section| format!("<a href=\"#{}\">{}</a>", s.id, escape(&s.title));
        let _ = writeln!(h, "<nav>{}</nav>", sections.iter().map(link).collect::<Vec<_>>().join(" "));
    }
    sections.iter().for_each(|s| section(&mut h, s, plan.seeds()));
    runs(&mut h, plan, finished);
    surroundings(&mut h, about);
    h += "</main>\n</body>\n</html>\n";
    Ok(h)
}

fn how(h: &mut String, plan: &Plan) -> Result<()> {
    for task in plan.tasks() {
        let text = match task {
            TaskKind::Classes => {
                let task = plan.classes()?;
                let data = &task.data[0];
                let (test, origin) = data.final_split()?;
                let (name, classes, train) = (&data.name, data.class_names.len(), data.train()?.len());
                format!(
                    "{name}, {classes} classes, {train} training and {} test images ({origin}). {}",
                    test.len(),
                    epochs(task)
                )
            }
            TaskKind::Captions => {
                let task = plan.captions()?;
                let data = &task.data[0];
                let (test, origin) = data.final_split()?;
                let (name, train) = (&data.name, data.train()?.len());
                format!(
                    "{name}, captions of {train} training and {} test images ({origin}). {}",
                    test.len(),
                    epochs(task)
                )
            }
        };
        let _ = writeln!(h, "<p>Data: {}</p>", escape(&text));
    }
    *h += "<p>Rows and lines without a name are of the paper’s own model: plain transformer blocks, full attention, cosine schedule, argmax and \
           noise again. What a recipe has of its own is called “of the recipe”.</p>\n";
    let seeds = match plan.seeds() {
        1 => "One training seed: how much another one would differ is not known, and verdicts are about the test images alone."
            .to_string(),
        n => format!("{n} training seeds; ± is their standard deviation."),
    };
    let _ = writeln!(
        h,
        "<p>Every number is of the last checkpoint with averaged weights: no checkpoint was chosen by accuracy. {seeds} The \
         standard error is that of the number of test images.</p>"
    );
    Ok(())
}

/// How long a task was trained.
fn epochs<D>(task: &Task<D>) -> String {
    let epochs = task.paper.train.epochs;
    match task.recipe_epochs == epochs {
        true => format!("Epochs: {epochs} (as many as the recipe {} has).", task.recipe),
        false => format!("Epochs: {epochs} (the recipe {} has {}).", task.recipe, task.recipe_epochs),
    }
}

fn section(h: &mut String, s: &Section, seeds: usize) {
    let _ = write!(
        h,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"of\">Beside the paper’s {}</p>\n",
        s.id,
        escape(&s.title),
        s.of
    );
    s.text.iter().for_each(|t| {
        let _ = writeln!(h, "<p>{}</p>", escape(t));
    });
    if !s.results.is_empty() {
        let ours = if seeds > 1 { "ours, mean ± deviation over seeds" } else { "ours" };
        let _ = write!(
            h,
            "<div class=\"wide\"><table>\n<thead><tr><th>Top-1 in %</th><th>sampling</th><th class=\"n\">paper, ImageNet</th>\
             <th class=\"n\">{ours}</th><th class=\"n\">standard error</th></tr></thead>\n"
        );
        for block in s.results.chunk_by(|a, b| a.block == b.block) {
            *h += "<tbody>\n";
            for r in block {
                let _ = writeln!(
                    h,
                    "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\"><strong>{}</strong></td>\
                     <td class=\"n\">{:.2}</td></tr>",
                    escape(&r.name),
                    escape(&r.sampling),
                    r.paper.unwrap_or("–"),
                    with_spread(&r.ours),
                    r.ours.standard_error()
                );
            }
            *h += "</tbody>\n";
        }
        *h += "</table></div>\n";
    }
    s.grids.iter().for_each(|g| grid(h, g));
    if !s.claims.is_empty() {
        *h += "<div class=\"wide\"><table>\n<thead><tr><th>The paper finds</th><th class=\"n\">by</th>\
               <th class=\"n\">ours, ± standard error</th><th>verdict</th></tr></thead>\n<tbody>\n";
        for c in &s.claims {
            let _ = writeln!(
                h,
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"{}\">{}</td></tr>",
                escape(&c.what),
                c.of_paper(),
                c.of_ours(),
                c.verdict().split([' ', ',']).next().unwrap_or_default(),
                c.verdict()
            );
        }
        *h += "</tbody>\n</table></div>\n<p class=\"small\">A verdict needs a difference of two standard errors.</p>\n";
    }
    *h += "<div class=\"figures\">\n";
    for f in &s.figures {
        let _ = write!(h, "<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n", f.drawing.svg(), escape(&f.caption));
    }
    let names: Vec<String> = s.all_data().iter().map(|d| format!("data/{}.csv", d.name)).collect();
    let _ =
        write!(h, "</div>\n<p class=\"small\">Numbers: {} (and .json).</p>\n</section>\n", escape(&names.join(", ")));
}

fn grid(h: &mut String, g: &Grid) {
    let class = |a: Align| if a == Align::Right { " class=\"n\"" } else { "" };
    *h += "<div class=\"wide\"><table class=\"grid\">\n<thead><tr>";
    for (name, align) in &g.columns {
        let _ = write!(h, "<th{}>{}</th>", class(*align), escape(name));
    }
    *h += "</tr></thead>\n<tbody>\n";
    for row in &g.rows {
        *h += "<tr>";
        for (cell, (_, align)) in row.iter().zip(&g.columns) {
            let _ = write!(h, "<td{}>{}</td>", class(*align), escape(cell));
        }
        *h += "</tr>\n";
    }
    *h += "</tbody>\n</table></div>\n";
}

fn runs(h: &mut String, plan: &Plan, finished: &[Finished]) {
    *h += "<section id=\"runs\">\n<h2>Runs</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>trained</th><th class=\"n\">seed</th>\
           <th class=\"n\">steps</th><th class=\"n\">trained in</th><th>folder</th></tr></thead>\n<tbody>\n";
    for (r, f) in plan.runs.iter().zip(finished) {
        let (took, folder) = match &r.existing {
            Some(g) => ("existing".into(), g.path.display().to_string()),
            None => {
                let before = if f.reused { " (before)" } else { "" };
                (format!("{}{before}", report::duration(f.seconds)), format!("runs/{}", r.key))
            }
        };
        let _ = writeln!(
            h,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{took}</td><td><code>{}</code></td></tr>",
            escape(r.variant.name()),
            r.seed,
            f.steps,
            escape(&folder)
        );
    }
    *h += "</tbody>\n</table></div>\n<p class=\"small\">All settings of a run are in its config.toml.</p>\n";
    for r in &plan.runs {
        let Some(g) = &r.existing else { continue };
        let differs = match g.differs.is_empty() {
            true => "with the settings of the plan".to_string(),
            false => format!("not trained as the plan would have it: {}", g.differs.join(", ")),
        };
        let _ = writeln!(
            h,
            "<p class=\"small\">{}, seed {}, was there already ({} planned steps), {}.</p>",
            escape(r.variant.name()),
            r.seed,
            r.steps,
            escape(&differs)
        );
    }
    *h += "</section>\n";
}

fn surroundings(h: &mut String, about: &About) {
    let e = &about.environment;
    let what = [
        ("command", format!("<code>{}</code>", escape(&about.command))),
        ("version", format!("tweedie {}", escape(&e.version))),
        ("device", format!("{}, {}", escape(&e.device), report::threads(e.threads))),
        ("system", escape(&e.os)),
        ("date", escape(&e.time)),
        (
            "time taken",
            format!("{}, of it {} for training", report::duration(about.seconds), report::duration(about.training)),
        ),
    ];
    *h += "<section id=\"made\">\n<h2>How this was made</h2>\n<dl>\n";
    what.iter().for_each(|(k, v)| {
        let _ = writeln!(h, "<dt>{k}</dt><dd>{v}</dd>");
    });
    *h += "</dl>\n</section>\n";
}
