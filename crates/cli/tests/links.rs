//! Every relative link of the repository's Markdown leads to a file that is there, and every anchor to a heading of it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Markdown files below `folder`, without what is built, downloaded or trained.
fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let (path, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name().to_string_lossy().into_owned());
        let hidden = name.starts_with('.') && name != ".github";
        if path.is_symlink() || hidden || ["target", "runs"].contains(&name.as_str()) && folder == root() {
            continue;
        }
        match path.is_dir() {
            true => markdown(&path, found),
            false if name.ends_with(".md") => found.push(path),
            false => {}
        }
    }
}

/// Lines outside of code blocks, numbered from 1, without code spans.
fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut fence, mut lines) = (None, Vec::new());
    for (i, line) in text.lines().enumerate() {
        let mark = ["```", "~~~"].into_iter().find(|m| line.trim_start().starts_with(m));
        match (fence, mark) {
            (None, Some(m)) => fence = Some(m),
            (Some(open), Some(m)) if open == m => fence = None,
            (None, None) => lines.push((i + 1, line.split('`').step_by(2).collect::<Vec<_>>().join("`"))),
            _ => {}
        }
    }
    lines
}

/// Destinations of `[text](destination)` and `[name]: destination`.
fn links(line: &str) -> Vec<&str> {
    let mut all: Vec<&str> = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()).collect();
    if line.starts_with('[')
        && let Some((_, rest)) = line.split_once("]: ")
    {
        all.extend(rest.split_whitespace().next());
    }
    all
}

/// Anchors as GitHub makes them: letters, digits, `-` and `_` in lower case, spaces as `-`; later ones of the same name are numbered.
fn anchors(text: &str) -> HashSet<String> {
    let (mut seen, mut all) = (HashMap::<String, usize>::new(), HashSet::new());
    let mut inside = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        }
        let depth = line.chars().take_while(|c| *c == '#').count();
        let Some(title) = line[depth..].strip_prefix(' ').filter(|_| (1..=6).contains(&depth) && !inside) else {
            continue;
        };
        // Of a link only the text is shown.
        let mut shown = String::new();
        for (i, part) in title.split("](").enumerate() {
            shown += if i == 0 { part } else { part.split_once(')').map_or("", |(_, after)| after) };
        }
        let kept = shown.trim().to_lowercase();
        let kept: String = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c)).collect();
        let name = kept.replace(' ', "-");
        let count = seen.entry(name.clone()).or_insert(0);
        all.insert(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    all
}

/// What is wrong with a link in `file`, if anything is.
fn broken(file: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(p, a)| (p, Some(a)));
    let target = match path {
        "" => file.to_path_buf(),
        path => file.parent().unwrap().join(path),
    };
    let Ok(target) = target.canonicalize() else { return Some("there is no such file".into()) };
    if !target.starts_with(root()) {
        return Some("it leads out of the repository".into());
    }
    let anchor = anchor?;
    let there = if path.is_empty() { text.to_string() } else { fs::read_to_string(&target).unwrap_or_default() };
    (!anchors(&there).contains(anchor)).then(|| format!("there is no heading #{anchor}"))
}

#[test]
fn every_link_leads_somewhere() {
    let mut files = Vec::new();
    markdown(&root(), &mut files);
    let (mut count, mut wrong) = (0, Vec::new());
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for (number, line) in prose(&text) {
            for link in links(&line) {
                count += 1;
                if let Some(why) = broken(file, &text, link) {
                    wrong.push(format!("{}:{number}: {link}: {why}", file.strip_prefix(root()).unwrap().display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files.len() > 10 && count > 50, "{} files with {count} links: where are they?", files.len());
}

/// The test above can fail.
#[test]
fn broken_links_are_seen() {
    let file = root().join("README.md");
    let text =
        "# One\n## A `b`, c: d\n## One\n```\n# code\n[x](no.md)\n```\nsee [a](#one), `[b](no.md)` and [c](docs/no.md)";
    let found: Vec<String> = prose(text).iter().flat_map(|(_, l)| links(l)).map(String::from).collect();
    assert_eq!(found, ["#one", "docs/no.md"]);
    let is_broken = |link: &str| broken(&file, text, link).is_some();
    for (link, want) in [
        ("#one", false),
        ("#one-1", false),
        ("#a-b-c-d", false),
        ("#code", true),
        ("docs/no.md", true),
        ("docs/code-map.md", false),
        ("docs/code-map.md#rules", false),
        ("docs/code-map.md#no", true),
        ("../elsewhere", true),
        ("https://example.org/#x", false),
    ] {
        assert_eq!(is_broken(link), want, "{link}");
    }
}
