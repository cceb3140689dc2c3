//! A trace as one page without anything outside it, to be opened in a browser or shown in a notebook.

use serde::Serialize;

use crate::error::{Error, Result};

const PAGE: &str = include_str!("../../assets/trace.html");

/// The page of a trace: an object with `run`, `method`, `task`, `sampler`, `guidance`, `seed`, `input`, `result`, `steps` as
/// [`Step`](super::Step) has them and perhaps `heat`. `image` is the address of a picture, as a `data:` URI.
pub fn trace_page(trace: &impl Serialize, image: Option<&str>) -> Result<String> {
    let json = |e: serde_json::Error| Error::Input(format!("the trace has no JSON form: {e}"));
    // "</" could end the script element early, "<!--" could keep its end from being seen.
    let text = |v: String| v.replace('<', "\\u003c");
    let trace = text(serde_json::to_string(trace).map_err(json)?);
    let image = text(serde_json::to_string(&image).map_err(json)?);
    Ok(PAGE.replace("/*IMAGE*/null", &image).replace("/*TRACE*/null", &trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_cannot_end_the_script() {
        let trace = serde_json::json!({"result": "</script>", "steps": []});
        let page = trace_page(&trace, Some("data:</script>")).unwrap();
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
        assert!(page.contains("\\u003c/script>") && !page.contains("/*TRACE*/") && !page.contains("/*IMAGE*/"));
    }

    /// Words that are right in one colour scheme alone, and tokens that only a mouse reaches.
    #[test]
    fn the_page_is_for_both_schemes_and_for_keys() {
        assert!(!PAGE.contains("Darker") && PAGE.contains("tabIndex") && PAGE.contains("onfocus"));
        assert!(!PAGE.contains("replaceChildren(...s.tokens"), "tokens made anew lose the selection");
    }
}
