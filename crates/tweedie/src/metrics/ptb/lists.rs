//! Words that rules name, in lower case.

/// Words that start a sentence: before them, with a capital, a single letter loses its full stop.
#[rustfmt::skip]
pub const SENTENCE_STARTS: &[&str] = &[
    "a", "about", "according", "additionally", "after", "an", "as", "at", "but", "earlier", "he", "her", "here",
    "however", "if", "in", "it", "last", "many", "more", "now", "once", "one", "other", "our", "she", "since", "so",
    "some", "such", "that", "the", "their", "then", "there", "these", "they", "this", "we", "what", "when", "while",
    "yet", "you",
];

/// Words that keep their full stop.
#[rustfmt::skip]
pub const ABBREVIATIONS: &[&str] = &[
    "adj", "adm", "adv", "al", "ala", "alex", "apr", "ariz", "assn", "assoc", "asst", "atty", "attys", "aug", "ave",
    "bhd", "bldg", "blvd", "brig", "bros", "calif", "capt", "cf", "cie", "cmdr", "co", "col", "colo", "conn", "corp",
    "cos", "cpl", "ct", "dak", "dec", "dept", "det", "dr", "drs", "elec", "ens", "esq", "est", "etc", "ext", "feb",
    "fla", "fri", "ft", "ga", "gen", "gov", "govs", "hon", "inc", "ind", "insp", "intl", "invt", "jan", "jos", "jr",
    "jul", "jun", "kan", "kans", "ky", "lt", "ltd", "maj", "mar", "md", "messrs", "mfg", "mich", "minn", "mlle",
    "mme", "mo", "mon", "mont", "mr", "mrs", "ms", "msgr", "mt", "mtg", "natl", "neb", "nev", "nov", "oct", "okla",
    "penn", "pfc", "ph", "plc", "ppte", "ppty", "pres", "prof", "pte", "ptes", "pty", "ptys", "pvt", "rd", "rep",
    "reps", "rev", "rt", "sen", "sens", "sep", "sept", "seq", "sfc", "sgt", "spc", "sq", "sr", "st", "ste", "supt",
    "sys", "tel", "tenn", "thu", "thurs", "tue", "tues", "univ", "va", "vs", "vt", "wed", "wis", "wisc", "wm", "wyo",
];

/// Those that do so with a capital.
#[rustfmt::skip]
pub const CAPITAL_ABBREVIATIONS: &[&str] = &[
    "ark", "az", "del", "ill", "la", "mass", "miss", "ore", "pa", "tex", "wash",
];

/// Those that do so before a number.
#[rustfmt::skip]
pub const NUMBER_ABBREVIATIONS: &[&str] = &[
    "art", "ca", "fig", "figs", "no", "nos", "op", "pp", "prop",
];

/// Words with an apostrophe inside.
#[rustfmt::skip]
pub const APOSTROPHE_WORDS: &[&str] = &[
    "ma'am", "c'mon", "c'est",
];

/// What such words may end in.
#[rustfmt::skip]
pub const APOSTROPHE_ENDS: &[&str] = &[
    "e'er", "ta'en",
];

/// Words that are split in two, and where.
#[rustfmt::skip]
pub const SPLIT: &[(&str, usize)] = &[
    ("cannot", 3), ("gonna", 3), ("gotta", 3), ("wanna", 3), ("lemme", 3), ("gimme", 3),
];

/// What stays with the apostrophe before it.
#[rustfmt::skip]
pub const SHORTENED: &[&str] = &[
    "n'", "cause", "til", "em",
];

/// Endings with an apostrophe.
#[rustfmt::skip]
pub const CLITICS: &[&str] = &[
    "s", "m", "d", "ll", "ve", "re",
];
