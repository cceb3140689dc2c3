//! Captions into words as the COCO caption evaluation does it: Penn Treebank tokens in lower case, punctuation removed.
//!
//! The rules were settled by feeding text to Stanford's tokenizer (CoreNLP 3.4.1, the one inside `pycocoevalcap`) and
//! looking at what came out, since its licence (GPL) is not ours. The code is our own and its grammar was not open while this
//! was written, but some of what to try was remembered from that grammar, and the lists of abbreviations and sentence starts
//! are what the program answered to a search over short words and a vocabulary. At each place the longest match wins,
//! as in any generated lexer.

mod chars;
mod lists;
mod rules;

use rules::Match;

/// What `pycocoevalcap` takes out. Brackets come out as `-lrb-` in lower case and so are not taken out: neither here.
const PUNCTUATION: [&str; 17] =
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"];

/// The words of one caption, separated by spaces. Line breaks count as spaces.
///
/// A token that spans a space of the text (`1 1/2`) has a no-break space in its place, as the original has.
pub fn tokenize(caption: &str) -> String {
    tokenize_before(caption, None)
}

/// As [`tokenize`], where `next` is the caption on the line below: the original reads all captions as one text, and whether
/// "Vitamin C." keeps its full stop depends on the word after it.
pub fn tokenize_before(caption: &str, next: Option<&str>) -> String {
    /// Longer than any word that matters.
    const AHEAD: usize = 24;
    let breaks = |c: char| if matches!(c, '\n' | '\r') { ' ' } else { c };
    let mut text: Vec<char> = caption.chars().map(breaks).collect();
    let length = text.len();
    if let Some(next) = next {
        text.push('\n');
        text.extend(next.chars().take(AHEAD).chain(['\n']));
    }
    let mut out = String::with_capacity(caption.len() + 8);
    let mut at = 0;
    while at < length {
        let Match { end, tokens } = rules::next(&text, at);
        at = end;
        for t in tokens {
            let t = t.to_lowercase();
            if !PUNCTUATION.contains(&t.as_str()) {
                if !out.is_empty() {
                    out.push(' ');
                }
                out += &t;
            }
        }
    }
    out
}

/// Tokenize captions as lines of one text.
pub fn tokenize_all(captions: &[&str]) -> Vec<String> {
    use rayon::prelude::*;
    let one = |i: usize| tokenize_before(captions[i], captions.get(i + 1).copied());
    (0..captions.len()).into_par_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any text ends, and gives words without blanks around them.
        #[test]
        fn any_text_can_be_read(text in "[a-dnstN'’.,:;!?/&@#$(<>) 0-9½é😀\\-]{0,40}", next in proptest::option::of("\\PC{0,10}")) {
            let words = tokenize_before(&text, next.as_deref());
            prop_assert!(words.split(' ').all(|w| !w.is_empty()) || words.is_empty(), "{words:?}");
        }
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(tokenize(text), want, "{text}");
    }

    #[test]
    fn contractions_are_split() {
        check("Don't you can't it's o'clock", "do n't you ca n't it 's o'clock");
        check("dogs' ’twas I’m gonna cannot", "dogs twas i 'm gon na can not");
    }

    #[test]
    fn brackets_stay_in_lower_case() {
        check("a (red) [blue] dog", "a -lrb- red -rrb- -lsb- blue -rsb- dog");
    }

    #[test]
    fn a_full_stop_stays_with_an_abbreviation_and_a_letter() {
        check(
            "Mr. Smith at St. Mary's. Vitamin C. No. 5, no. The end.",
            "mr. smith at st. mary 's vitamin c. no. 5 no the end",
        );
    }

    #[test]
    fn odd_text_does_not_panic() {
        for text in [
            "", " ", "'", "\"", "&", "<", "a'", "n't", "&#", "&#x;", "1 1/", "(555", "@", "http://", "\u{301}", "😀",
            ":'", "'9",
        ] {
            tokenize(text);
        }
    }

    #[test]
    fn a_single_letter_keeps_its_full_stop_unless_a_sentence_starts() {
        let lines = ["Vitamin C.", "The Wii U.", "nothing", "I. The end"];
        assert_eq!(tokenize_all(&lines), ["vitamin c", "the wii u.", "nothing", "i the end"]);
    }
}
