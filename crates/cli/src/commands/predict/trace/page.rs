//! A trace as one page without anything outside it.

use tweedie_figures::picture_uri;

use super::Trace;
use crate::failure::{Failure, Result};

const PAGE: &str = include_str!("page.html");

pub fn render(trace: &Trace) -> Result<String> {
    let json = serde_json::to_string(trace).map_err(|e| Failure::ours(e.to_string()))?;
    // "</" could end the script element early, "<!--" could keep its end from being seen.
    let json = json.replace('<', "\\u003c");
    let image = trace.picture.as_ref().map_or("null".into(), |p| format!("\"{}\"", picture_uri(p)));
    Ok(PAGE.replace("/*IMAGE*/null", &image).replace("/*TRACE*/null", &json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie::data::Task;
    use tweedie::generate::{Step, Token};

    #[test]
    fn a_token_cannot_end_the_script() {
        let token = Token { text: Some("</script>".into()), p: 1.0, entropy: 0.0, top: vec![] };
        let trace = Trace {
            run: "r".into(),
            method: "TDD",
            task: Task::Text,
            sampler: "argmax".into(),
            guidance: 1.0,
            seed: 0,
            input: None,
            result: "x".into(),
            steps: vec![Step { t: 1, alpha_bar: 1.0, tokens: vec![token] }],
            heat: None,
            picture: None,
        };
        let page = render(&trace).unwrap();
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
        assert!(page.contains("\\u003c/script>") && !page.contains("/*TRACE*/"));
    }

    /// Words that are right in one colour scheme alone, and tokens that only a mouse reaches.
    #[test]
    fn the_page_is_for_both_schemes_and_for_keys() {
        assert!(!PAGE.contains("Darker") && PAGE.contains("tabIndex") && PAGE.contains("onfocus"));
        assert!(!PAGE.contains("replaceChildren(...s.tokens"), "tokens made anew lose the selection");
    }
}
