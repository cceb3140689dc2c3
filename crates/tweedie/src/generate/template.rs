//! Texts of which some tokens are fixed: infill and prompt.

use crate::error::{Error, Result};
use crate::tokenize::Tokenizer;

/// The classes of `text`, or an error that names the word that has none.
fn encode_known(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let ids = tokenizer.try_encode(text)?;
    let unknown = |text: &str| tokenizer.encode(text).iter().any(|id| Some(*id) == tokenizer.unk());
    if unknown(text) {
        let word = text.split_whitespace().find(|w| unknown(w)).unwrap_or(text);
        return Err(Error::UnknownWord { word: word.into() });
    }
    Ok(ids)
}

/// Tokens that a template gives, and gaps, `n` in all; underscores stand for one token each. Where blanks begin tokens, one right
/// before a gap is the beginning of what fills it.
pub fn infill(tokenizer: &Tokenizer, n: usize, text: &str) -> Result<Vec<Option<u32>>> {
    let blanks_begin = tokenizer.blanks_begin_tokens();
    let mut all = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let gap = rest.len() - rest.trim_start_matches('_').len();
        if gap > 0 {
            all.extend(vec![None; gap]);
            rest = &rest[gap..];
            continue;
        }
        let end = rest.find('_').unwrap_or(rest.len());
        let part = &rest[..end];
        let before_gap = end < rest.len() && blanks_begin;
        let part = part.strip_suffix(' ').filter(|_| before_gap).unwrap_or(part);
        if !part.is_empty() {
            all.extend(encode_known(tokenizer, part)?.into_iter().map(Some));
        }
        rest = &rest[end..];
    }
    filled(all, n, text)
}

/// Tokens at the start of a text of `n`. Underscores of a prompt are text.
pub fn prompt(tokenizer: &Tokenizer, n: usize, text: &str) -> Result<Vec<Option<u32>>> {
    filled(encode_known(tokenizer, text)?.into_iter().map(Some).collect(), n, text)
}

/// As long as the model's texts, or an error that says that there is no room.
fn filled(mut all: Vec<Option<u32>>, n: usize, text: &str) -> Result<Vec<Option<u32>>> {
    if all.len() > n {
        let text: String = text.chars().take(80).collect();
        return Err(Error::Input(format!("'{text}' has {} tokens, the model writes {n}", all.len())));
    }
    all.resize(n, None);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::Kind;

    #[test]
    fn underscores_are_gaps_of_one_token_each() {
        let t = Tokenizer::train(Kind::Word, 50, ["a red dog on grass", "a red dog on grass"]).unwrap();
        let id = |w: &str| Some(t.encode(w)[0]);
        let row = infill(&t, 7, "a __ dog on _").unwrap();
        assert_eq!(row, [id("a"), None, None, id("dog"), id("on"), None, None]);
        assert!(infill(&t, 3, "a ____").unwrap_err().to_string().contains("5 tokens"));
        assert!(infill(&t, 5, "a zebra").unwrap_err().to_string().contains("lacks"));
    }

    /// The given parts of a template as text, and `_` for each gap.
    fn shown(t: &Tokenizer, text: &str) -> String {
        let row = infill(t, 64, text).unwrap();
        let end = row.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
        row[..end].chunk_by(|a, b| a.is_some() && b.is_some()).fold(String::new(), |all, part| {
            let ids: Vec<u32> = part.iter().flatten().copied().collect();
            all + &if ids.is_empty() { "_".to_string() } else { t.decode(&ids) }
        })
    }

    #[test]
    fn blanks_stay_with_the_tokens_they_belong_to() {
        let texts = ["A red dog on the grass", "A red dog on the grass", "A dog"];
        let bpe = Tokenizer::train(Kind::Bpe, 290, texts).unwrap();
        for (given, want) in [
            ("A __ dog", "A__ dog"), // the blank before a gap begins what fills it
            ("A __dog", "A__dog"),
            ("A__ dog", "A__ dog"),
            ("A  __ dog", "A __ dog"),
            (" A _ _ dog on the ", " A__ dog on the "),
        ] {
            assert_eq!(shown(&bpe, given), want, "{given:?}");
        }
        let row = infill(&bpe, 9, "A __ dog").unwrap();
        let want = [bpe.encode("A"), bpe.encode(" dog")].map(|ids| ids.into_iter().map(Some).collect::<Vec<_>>());
        assert_eq!(row[..1 + 2 + want[1].len()], [&want[0][..], &[None, None], &want[1]].concat());
        let chars = Tokenizer::train(Kind::Chars, 99, texts).unwrap();
        for given in ["A __ dog", "A __dog", " A _ _ dog on the "] {
            assert_eq!(shown(&chars, given), given);
        }
        for kind in [Kind::Word, Kind::WordPiece, Kind::Space] {
            let t = Tokenizer::train(kind, 60, texts).unwrap();
            assert_eq!(infill(&t, 9, "A __ dog ").unwrap(), infill(&t, 9, "A__dog").unwrap(), "{kind}");
        }
    }
}
