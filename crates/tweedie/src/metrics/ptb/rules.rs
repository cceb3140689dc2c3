//! What may come next in a text.

use super::chars::{is_alnum, is_apostrophe, is_digit, is_letter, is_sign};
use super::lists::*;

/// A stretch of text and the tokens it becomes.
pub struct Match {
    pub end: usize,
    pub tokens: Vec<String>,
}

impl Match {
    fn none(end: usize) -> Match {
        Match { end, tokens: Vec::new() }
    }

    fn one(end: usize, token: impl Into<String>) -> Match {
        Match { end, tokens: vec![token.into()] }
    }
}

/// The characters from `at` to the first that is not `of`.
fn run(s: &[char], at: usize, of: impl Fn(char) -> bool) -> usize {
    at + s[at.min(s.len())..].iter().take_while(|c| of(**c)).count()
}

fn is(s: &[char], at: usize, of: impl Fn(char) -> bool) -> bool {
    s.get(at).is_some_and(|c| of(*c))
}

fn text(s: &[char]) -> String {
    // A soft hyphen is not seen; a space inside a token must not separate words.
    s.iter().filter(|c| **c != '\u{ad}').map(|&c| if c == ' ' { '\u{a0}' } else { c }).collect()
}

fn starts(s: &[char], at: usize, with: &str) -> bool {
    let mut i = at;
    with.chars().all(|w| {
        let c = s.get(i).copied();
        i += 1;
        c.is_some_and(|c| c.to_ascii_lowercase() == w || (w == '\'' && is_apostrophe(c)))
    })
}

/// The longest of `words` at `at` that no letter or digit follows.
fn one_of<'a>(s: &[char], at: usize, words: &[&'a str]) -> Option<&'a str> {
    let whole = |w: &&&str| starts(s, at, w) && !is(s, at + w.len(), is_alnum);
    words.iter().filter(whole).max_by_key(|w| w.len()).copied()
}

/// The next match at `at`, which is inside the text.
pub fn next(s: &[char], at: usize) -> Match {
    let c = s[at];
    if is_alnum(c) {
        return word(s, at);
    }
    let dots = run(s, at, |c| c == '.');
    if dots >= at + 3 {
        return Match::one(dots, "...");
    }
    if let Some(end) = number(s, at) {
        return Match::one(end, text(&s[at..end]));
    }
    if is_apostrophe(c) {
        return apostrophe(s, at);
    }
    let next = s.get(at + 1).copied().unwrap_or(' ');
    if let Some(m) = emoticon(s, at) {
        return m;
    }
    let run_of = |c| Match::one(run(s, at, |x| x == c), text(&s[at..run(s, at, |x| x == c)]));
    match c {
        '\u{ad}' => Match::none(at + 1),
        '(' => phone(s, at).unwrap_or_else(|| Match::one(at + 1, "-lrb-")),
        ')' => Match::one(at + 1, "-rrb-"),
        '[' => Match::one(at + 1, "-lsb-"),
        ']' => Match::one(at + 1, "-rsb-"),
        '{' => Match::one(at + 1, "-lcb-"),
        '}' => Match::one(at + 1, "-rcb-"),
        '!' | '?' => {
            let end = run(s, at, |c| matches!(c, '!' | '?'));
            Match::one(end, text(&s[at..end]))
        }
        '.' => Match::one(at + 1, "."),
        '-' if ["-lrb-", "-rrb-", "-lsb-", "-rsb-", "-lcb-", "-rcb-"].iter().any(|b| starts(s, at, b)) => {
            Match::one(at + 5, text(&s[at..at + 5]))
        }
        '-' => Match::one(run(s, at, |c| c == '-'), "--"),
        '"' | '\u{93}' | '\u{94}' | '\u{ab}' | '\u{bb}' | '\u{201c}' | '\u{201d}' => Match::one(at + 1, "''"),
        '\u{91}' | '\u{2018}' | '\u{201b}' | '\u{2039}' | '\u{203a}' => Match::one(at + 1, "`"),
        '\u{96}' | '\u{97}' | '\u{2013}'..='\u{2015}' => Match::one(at + 1, "--"),
        '\u{2026}' => Match::one(at + 1, "..."),
        '\u{80}' | '\u{a4}' | '\u{20a0}' | '\u{20ac}' => Match::one(at + 1, "$"),
        '\u{a2}' => Match::one(at + 1, "cents"),
        '\u{a3}' => Match::one(at + 1, "#"),
        '½' => Match::one(at + 1, "1/2"),
        '¼' => Match::one(at + 1, "1/4"),
        '¾' => Match::one(at + 1, "3/4"),
        '⅓' => Match::one(at + 1, "1/3"),
        '⅔' => Match::one(at + 1, "2/3"),
        '#' if is_letter(next) => {
            let end = run(s, at + 1, is_letter);
            Match::one(end, text(&s[at..end]))
        }
        '@' if is_letter(next) || next == '_' => {
            let end = run(s, at + 1, |c| is_alnum(c) || c == '_');
            Match::one(end, text(&s[at..end]))
        }
        '#' | '*' | '_' | '@' => run_of(c),
        '<' | '>' => tag(s, at).unwrap_or_else(|| run_of(c)),
        '&' => entity(s, at),
        '`' if next == '`' => Match::one(at + 2, "``"),
        _ if is_sign(c) => Match::one(at + 1, c),
        _ => Match::none(at + 1),
    }
}

/// `it`, `it's`, `U.S.`, `well-known`, `and/or`, `4-way`, `AT&T`, `me@there.org`, …
fn word(s: &[char], at: usize) -> Match {
    if let Some(m) = apostrophe_word(s, at) {
        return m;
    }
    let letter = is_letter(s[at]);
    let plain = if letter { dotted(s, at) } else { at };
    let longest = [
        plain,
        compound(s, at),
        number(s, at).unwrap_or(at),
        fraction(s, at).unwrap_or(at),
        phone_end(s, at).unwrap_or(at),
        if letter { initials(s, at) } else { at },
        if letter { abbreviation(s, at) } else { at },
        address(s, at).unwrap_or(at),
        ampersand(s, at).unwrap_or(at),
    ];
    let end = longest.into_iter().max().unwrap_or(at + 1).max(at + 1);
    if end == plain {
        if let Some(m) = negation(s, at, end) {
            return m;
        }
        let word = text(&s[at..end]);
        if let Some(&(_, cut)) = SPLIT.iter().find(|w| word.eq_ignore_ascii_case(w.0)) {
            return Match { end, tokens: vec![word[..cut].into(), word[cut..].into()] };
        }
    }
    let end = before_comma(s, end);
    Match::one(end, text(&s[at..end]))
}

/// A full stop before a comma, colon or semicolon is an abbreviation's: it goes with the word.
fn before_comma(s: &[char], end: usize) -> usize {
    end + (is(s, end, |c| c == '.') && is(s, end + 1, |c| matches!(c, ',' | ';' | ':'))) as usize
}

/// A word, and words joined to it by `.`, `!` or `?`: `t.v`, `plate.A`.
fn dotted(s: &[char], at: usize) -> usize {
    let part = |c: char| is_alnum(c) || c == '\u{ad}';
    let mut end = run(s, at, part);
    while is(s, end, |c| matches!(c, '.' | '!' | '?')) && is(s, end + 1, is_letter) {
        end = run(s, end + 1, part);
    }
    end
}

/// Words and numbers joined by hyphens, underscores and at most two slashes.
fn compound(s: &[char], at: usize) -> usize {
    let mut end = run(s, at, is_alnum);
    let dashed = |c: char| matches!(c, '-' | '_' | '\u{2010}' | '\u{2011}');
    let hyphen = |at: usize| is(s, at, |c| c == '-');
    let first = initials(s, at);
    let abbreviated = first > end && (hyphen(first) || is(s, first, is_letter) && hyphen(first + 1));
    if abbreviated {
        end = if hyphen(first) { first } else { first + 1 };
    }
    let decimal = number(s, at).unwrap_or(at);
    if decimal > end && is(s, decimal, |c| c == '-') && !s[at..decimal].contains(&':') {
        end = decimal;
    }
    let mut slashes = 0;
    loop {
        let slash = is(s, end, |c| c == '/') && slashes < 2;
        if !(slash || is(s, end, dashed)) || !is(s, end + 1, is_alnum) {
            return end;
        }
        slashes += slash as usize;
        let part = end + 1;
        end = run(s, part, is_alnum);
        if abbreviated {
            end = end.max(initials(s, part)); // `a.m.-p.m.`
        }
        // `x-o'brien`
        let letter = |c| matches!(c, 'd' | 'D' | 'o' | 'O' | 'l' | 'L');
        let single = end == part + 1 && is(s, part, letter);
        if single && is(s, end, is_apostrophe) && run(s, end + 1, is_letter) >= end + 3 {
            end = run(s, end + 1, is_alnum);
        }
    }
}

/// Single letters with full stops: `a.`, `U.S.`; and `Ph.D.`.
fn initials(s: &[char], at: usize) -> usize {
    if starts(s, at, "ph.d.") && !is(s, at + 5, is_letter) {
        return at + 5;
    }
    let mut end = at;
    while is(s, end, is_letter) && is(s, end + 1, |c| c == '.') {
        end += 2;
    }
    if end == at + 2 && sentence_starts(s, end) { at } else { end }
}

fn sentence_starts(s: &[char], at: usize) -> bool {
    let start = run(s, at, char::is_whitespace);
    let end = run(s, start, |c| c.is_ascii_alphabetic());
    start > at
        && is(s, start, |c| c.is_ascii_uppercase())
        && is(s, end, char::is_whitespace)
        && SENTENCE_STARTS.iter().any(|w| w.len() == end - start && starts(s, start, w))
}

fn abbreviation(s: &[char], at: usize) -> usize {
    let end = run(s, at, |c| c.is_ascii_alphabetic());
    if !is(s, end, |c| c == '.') || end - at < 2 || end - at > 6 {
        return at;
    }
    let word: String = s[at..end].iter().map(|c| c.to_ascii_lowercase()).collect();
    let known = |list: &[&str]| list.contains(&word.as_str());
    let after = end + 1 + is(s, end + 1, char::is_whitespace) as usize;
    if known(ABBREVIATIONS)
        || known(CAPITAL_ABBREVIATIONS) && s[at].is_ascii_uppercase()
        || known(NUMBER_ABBREVIATIONS) && is(s, after, is_digit)
    {
        return end + 1;
    }
    at
}

/// `1,000.5`, `10:30`, `.5`, `-5`.
fn number(s: &[char], at: usize) -> Option<usize> {
    let start = at + is(s, at, |c| matches!(c, '+' | '-')) as usize;
    let mut end = run(s, start, is_digit);
    while is(s, end, |c| matches!(c, '.' | ',' | ':')) && is(s, end + 1, is_digit) {
        end = run(s, end + 1, is_digit);
    }
    (end > start).then_some(end)
}

/// `3/4`, `1 3/4`.
fn fraction(s: &[char], at: usize) -> Option<usize> {
    let few = |from: usize| {
        let end = run(s, from, is_digit);
        (1..=4).contains(&(end - from)).then_some(end)
    };
    let over = |from: usize| {
        let slash = few(from)?;
        if !is(s, slash, |c| c == '/') {
            return None;
        }
        few(slash + 1)
    };
    let whole = few(at)?;
    match is(s, whole, |c| matches!(c, ' ' | '\u{a0}')) {
        true => over(whole + 1),
        false => over(at),
    }
}

/// `555 123 4567`; the forms without spaces are numbers anyway.
fn phone_end(s: &[char], at: usize) -> Option<usize> {
    let digits = |from: usize, n: usize| (run(s, from, is_digit) == from + n).then_some(from + n);
    let gap = |at: usize| is(s, at, |c| matches!(c, ' ' | '-' | '\u{a0}')).then_some(at + 1);
    let a = gap(digits(at, 3)?)?;
    let b = gap(digits(a, 3)?)?;
    digits(b, 4)
}

/// `(555) 123-4567`
fn phone(s: &[char], at: usize) -> Option<Match> {
    let code = run(s, at + 1, is_digit);
    if code != at + 4 || !is(s, code, |c| c == ')') {
        return None;
    }
    let rest = code + 1 + is(s, code + 1, |c| matches!(c, ' ' | '-' | '\u{a0}')) as usize;
    let middle = run(s, rest, is_digit);
    let gap = is(s, middle, |c| matches!(c, '-' | ' ' | '.'));
    let end = if gap { run(s, middle + 1, is_digit) } else { middle };
    (gap && middle == rest + 3 && end == middle + 5 || !gap && end == rest + 7)
        .then(|| Match::one(end, format!("-lrb-{}-rrb-{}", text(&s[at + 1..code]), text(&s[code + 1..end]))))
}

/// Addresses of pages and of people.
fn address(s: &[char], at: usize) -> Option<usize> {
    if starts(s, at, "http://") || starts(s, at, "https://") {
        let start = at + if starts(s, at, "https") { 8 } else { 7 };
        let end = run(s, start, |c| !c.is_whitespace() && !matches!(c, '"' | '<' | '>' | '|' | '(' | ')'));
        let kept = s[start..end].iter().rposition(|c| !matches!(c, '.' | '!' | '?' | ',' | ';' | ':' | '\'' | '-'))?;
        return Some(start + kept + 1);
    }
    let name = run(s, at, |c| is_alnum(c) || matches!(c, '.' | '_' | '-' | '+'));
    if !is(s, name, |c| c == '@') || !is_alnum(s[name - 1]) {
        return None;
    }
    let mut end = run(s, name + 1, is_alnum);
    if end == name + 1 {
        return None;
    }
    while is(s, end, |c| matches!(c, '.' | '-' | '_')) && is(s, end + 1, is_alnum) {
        end = run(s, end + 1, is_alnum);
    }
    Some(end)
}

/// `AT&T`, `US$`, `C++`, `C#`.
fn ampersand(s: &[char], at: usize) -> Option<usize> {
    let capital = |c: char| c.is_ascii_uppercase();
    let end = run(s, at, capital);
    if end > at && is(s, end, |c| c == '&') && is(s, end + 1, capital) {
        return Some(run(s, end + 1, capital));
    }
    if is(s, end, |c| c == '$')
        && ["us", "a", "c", "hk", "nz", "s"].iter().any(|n| n.len() == end - at && starts(s, at, n))
    {
        return Some(end + 1);
    }
    ["c++", "c#", "f#"].iter().find(|w| starts(s, at, w)).map(|w| at + w.len())
}

/// `o'clock`, `O'Brien`, `d'art`, `y'all`.
fn apostrophe_word(s: &[char], at: usize) -> Option<Match> {
    let mark = run(s, at, is_letter);
    if !is(s, mark, is_apostrophe) {
        return None;
    }
    let rest = run(s, mark + 1, is_letter);
    let take = |end: usize| {
        let end = before_comma(s, end);
        Some(Match::one(end, text(&s[at..end])))
    };
    let ends = |w: &&str| {
        let before = w.find('\'').unwrap_or(0);
        mark >= at + before && starts(s, mark - before, w) && rest == mark - before + w.len()
    };
    if one_of(s, at, APOSTROPHE_WORDS).is_some() || APOSTROPHE_ENDS.iter().any(|w| ends(w)) {
        return take(rest);
    }
    let head: String = s[at..mark].iter().collect();
    let clitic = one_of(s, mark + 1, CLITICS).is_some();
    let joined = |h: &str| {
        matches!(h, "d" | "l" | "n" | "o" | "qu" | "Qu")
            || h.len() == 1 && h != "I" && h != "Y" && is(s, at, |c| c.is_ascii_uppercase())
    };
    if joined(&head) && rest >= mark + 3 && !clitic {
        let whole = run(s, rest, |c| is_alnum(c));
        return take(hyphens(s, whole));
    }
    let alone = !clitic && matches!(head.to_ascii_lowercase().as_str(), "y" | "j" | "d" | "l");
    let before_word = head == "y" || head == "Y";
    if alone && (!before_word || rest > mark + 1)
        || head.eq_ignore_ascii_case("somethin")
        || head.eq_ignore_ascii_case("dunkin")
    {
        return Some(Match::one(mark + 1, text(&s[at..=mark])));
    }
    if head.eq_ignore_ascii_case("ol") && rest == mark + 1 {
        return Some(Match::one(mark + 1, text(&s[at..=mark])));
    }
    None
}

fn hyphens(s: &[char], mut end: usize) -> usize {
    while is(s, end, |c| c == '-') && is(s, end + 1, is_alnum) {
        end = run(s, end + 1, is_alnum);
    }
    end
}

/// `do|n't`.
fn negation(s: &[char], at: usize, end: usize) -> Option<Match> {
    if !is(s, end - 1, |c| matches!(c, 'n' | 'N'))
        || !is(s, end, is_apostrophe)
        || !is(s, end + 1, |c| matches!(c, 't' | 'T'))
    {
        return None;
    }
    let stop = run(s, end + 1, is_letter);
    // The bare `n't` has a straight apostrophe, whatever the text has.
    let ending = if stop == end + 2 { format!("{}'{}", s[end - 1], s[end + 1]) } else { text(&s[end - 1..stop]) };
    let mut tokens = vec![text(&s[at..end - 1]), ending];
    tokens.retain(|t| !t.is_empty());
    Some(Match { end: stop, tokens })
}

/// At an apostrophe: `'s`, `'em`, `'tis`, `'90s`, or a quote.
fn apostrophe(s: &[char], at: usize) -> Match {
    for (word, second) in [("tis", "is"), ("twas", "was")] {
        let end = at + 1 + word.len();
        if s[at] == '\'' && starts(s, at + 1, word) && (!is(s, end, is_alnum) || starts(s, end, "n't")) {
            return Match { end, tokens: vec!["'t".into(), second.into()] };
        }
    }
    if is(s, at + 1, |c| matches!(c, 'n' | 'N')) && (at + 2 == s.len() || is(s, at + 2, char::is_whitespace)) {
        return Match::one(at + 2, text(&s[at..at + 2]));
    }
    if let Some(w) = SHORTENED.iter().find(|w| starts(s, at + 1, w)) {
        let end = at + 1 + w.len();
        return Match::one(end, text(&s[at..end]));
    }
    if let Some(w) = one_of(s, at + 1, CLITICS) {
        return Match::one(at + 1 + w.len(), format!("'{w}"));
    }
    let digits = run(s, at + 1, is_digit);
    if is(s, at + 1, is_apostrophe) {
        return Match::one(at + 2, "''");
    }
    // A year, not the inches of 5'10".
    if digits == at + 3 && !(at > 0 && is_digit(s[at - 1])) {
        let end = digits + is(s, digits, |c| c == 's') as usize;
        return Match::one(end, text(&s[at..end]));
    }
    Match::one(at + 1, "'")
}

/// `:)`, `;-D`, `=(`, `^_^`.
fn emoticon(s: &[char], at: usize) -> Option<Match> {
    if starts(s, at, "^_^") || starts(s, at, "-_-") {
        return Some(Match::one(at + 3, text(&s[at..at + 3])));
    }
    let eyes = at + is(s, at, |c| matches!(c, '<' | '>')) as usize;
    if !is(s, eyes, |c| matches!(c, ':' | ';' | '=')) {
        return None;
    }
    let tear = eyes + 1 + is(s, eyes + 1, |c| c == '\'') as usize;
    let mouth = tear + is(s, tear, |c| c == '-') as usize;
    if !is(s, mouth, |c| matches!(c, '(' | ')' | 'D' | 'P' | 'p' | 'O' | '\\' | '|')) || is(s, mouth + 1, is_alnum) {
        return None;
    }
    let face = text(&s[at..=mouth]).replace('(', "-lrb-").replace(')', "-rrb-");
    Some(Match::one(mouth + 1, face))
}

/// `<b>`, `</b>`, `<a href="x">`, `<!-- a -->`.
fn tag(s: &[char], at: usize) -> Option<Match> {
    if s[at] != '<' {
        return None;
    }
    let name = at + 1 + is(s, at + 1, |c| matches!(c, '/' | '!' | '?')) as usize;
    let comment = starts(s, name, "--");
    if !comment && !is(s, name, |c| c.is_ascii_alphabetic()) {
        return None;
    }
    let after = run(s, name, |c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '-' | '@'));
    if !is(s, after, |c| matches!(c, ' ' | '/' | '>' | '?')) {
        return None;
    }
    let end = run(s, after, |c| !matches!(c, '<' | '>' | '\n'));
    is(s, end, |c| c == '>').then(|| Match::one(end + 1, text(&s[at..=end])))
}

/// `&amp;` and its like, or the sign alone.
fn entity(s: &[char], at: usize) -> Match {
    let named = [
        ("amp;", Some("&")),
        ("lt;", Some("<")),
        ("gt;", Some(">")),
        ("quot;", None),
        ("apos;", None),
        ("nbsp;", None),
    ];
    for (name, becomes) in named {
        if starts(s, at + 1, name) {
            let end = at + 1 + name.len();
            return becomes.map_or_else(|| Match::none(end), |b| Match::one(end, b));
        }
    }
    if is(s, at + 1, |c| c == '#') {
        let end = run(s, at + 2, |c| c.is_ascii_digit());
        if end > at + 2 && is(s, end, |c| c == ';') {
            return Match::one(end + 1, text(&s[at..=end]));
        }
    }
    Match::one(at + 1, "&")
}
