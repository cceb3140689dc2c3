//! The images that a classifier mistook most surely, as one page without anything outside it.

use std::fmt::Write;
use std::path::Path;

use tweedie::data::Source;
use tweedie::evaluate::Posteriors;
use tweedie::run::Loaded;
use tweedie::sample::{argmax, softmax};
use tweedie_figures::picture_uri;

use super::eval::Args;
use crate::failure::Result;
use crate::report::note;
use crate::shared::html::escape;
use crate::shared::image_input::picture;

const STYLE: &str = include_str!("mistakes.css");

/// Classes with bars, beside the true one.
const TOP: usize = 4;

/// One image that was taken for something else.
struct Mistake {
    index: u32,
    truth: usize,
    /// Probabilities of the classes.
    p: Vec<f64>,
}

impl Mistake {
    fn taken_for(&self) -> usize {
        argmax(&self.p)
    }

    fn sureness(&self) -> f64 {
        self.p[self.taken_for()]
    }
}

/// Those of all answers that are wrong, the surest first.
fn mistakes(seen: &Posteriors) -> Vec<Mistake> {
    let classes = seen.logits.len() / seen.labels.len().max(1);
    let rows = seen.logits.chunks_exact(classes.max(1)).zip(&seen.labels).zip(&seen.indices);
    let all = rows.map(|((l, truth), index)| Mistake { index: *index, truth: *truth as usize, p: softmax(l) });
    let is_wrong = |m: &Mistake| m.truth < classes && m.taken_for() != m.truth && m.sureness().is_finite();
    let mut wrong: Vec<Mistake> = all.filter(is_wrong).collect();
    wrong.sort_by(|a, b| b.sureness().total_cmp(&a.sureness()));
    wrong
}

/// Write the page.
pub fn write(path: &Path, args: &Args, loaded: &Loaded, source: &Source, seen: &Posteriors) -> Result<()> {
    let wrong = mistakes(seen);
    let mut cards = String::new();
    for m in wrong.iter().take(args.worst) {
        let shown = loaded.trained.preview(source.get(m.index as usize)?.image)?;
        let uri = picture_uri(&picture(shown));
        cards += &card(m, &source.place(m.index as usize), &uri, &loaded.trained.class_names);
    }
    let run = args.model.run.display().to_string();
    let about = about(&run, wrong.len(), seen.labels.len(), args.worst);
    tweedie::files::write_atomic(path, page(&run, &about, &cards).as_bytes())?;
    note(&format!("wrote {}", path.display()));
    Ok(())
}

fn about(run: &str, wrong: usize, of: usize, worst: usize) -> String {
    let share = 100.0 * wrong as f64 / of.max(1) as f64;
    let shown = if wrong > worst { format!(" The {worst} surest of them are shown.") } else { String::new() };
    format!(
        "{run}: {wrong} of {of} images ({share:.1} %) are taken for something else.{shown} The surest mistake comes first. Bars are \
         probabilities given the image; the true class is outlined. Some labels may be wrong, not the model."
    )
}

fn page(run: &str, about: &str, cards: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Mistakes of {}</title>\n\
         <style>\n{STYLE}</style>\n<main>\n<h1>Mistakes</h1>\n<p>{}</p>\n<div class=\"cards\">\n{cards}</div>\n</main>\n</html>\n",
        escape(run),
        escape(about)
    )
}

fn card(m: &Mistake, place: &str, uri: &str, names: &[String]) -> String {
    let name = |c: usize| escape(names.get(c).map_or("?", String::as_str));
    let mut order: Vec<usize> = (0..m.p.len()).collect();
    order.sort_by(|a, b| m.p[*b].total_cmp(&m.p[*a]));
    let mut shown: Vec<usize> = order.iter().copied().take(TOP).collect();
    if !shown.contains(&m.truth) {
        shown.push(m.truth);
    }
    let (truth, taken) = (name(m.truth), name(m.taken_for()));
    // Writing to a String cannot fail, here and below.
    let mut h = String::new();
    let _ = write!(
        h,
        "<figure>\n<img src=\"{uri}\" alt=\"{truth}, taken for {taken}\" loading=\"lazy\">\n<figcaption>\n\
         <strong>{taken}</strong> <span class=\"soft\">is really</span> <strong>{truth}</strong>\n<table>\n"
    );
    for c in shown {
        let percent = 100.0 * m.p[c];
        let _ = writeln!(
            h,
            "<tr{}><th scope=\"row\">{}</th><td class=\"bar\"><i style=\"width:{percent:.1}%\"></i></td><td>{percent:.1} %</td></tr>",
            if c == m.truth { " class=\"true\"" } else { "" },
            name(c)
        );
    }
    let _ = write!(h, "</table>\n<span class=\"place\">{}</span>\n</figcaption>\n</figure>\n", escape(place));
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_surest_mistake_comes_first_and_names_cannot_be_markup() {
        let seen = Posteriors {
            indices: vec![7, 8, 9, 10],
            labels: vec![0, 0, 1, 2],
            logits: vec![0.0, 1.0, 0.0, 5.0, 0.0, 0.0, 4.0, 0.0, 0.0, f32::NAN, 0.0, 0.0],
            ..Posteriors::default()
        };
        let wrong = mistakes(&seen);
        assert_eq!(wrong.iter().map(|m| m.index).collect::<Vec<_>>(), [9, 7]);
        let names = ["<b>", "cat", "dog"].map(String::from);
        let h = card(&wrong[0], "a/<x>.png", "data:image/png;base64,AA==", &names);
        assert!(h.contains("&lt;b&gt;</strong> <span class=\"soft\">is really</span> <strong>cat"), "{h}");
        assert!(h.contains("a/&lt;x&gt;.png") && h.contains("<tr class=\"true\"><th scope=\"row\">cat"), "{h}");
        assert!(
            about("r", 12, 100, 10).contains("12 of 100 images (12.0 %)")
                && about("r", 12, 100, 10).contains("The 10 surest")
        );
    }
}
