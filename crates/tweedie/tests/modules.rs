//! Modules of the library use each other in one direction: what is below can be read, tested and changed without what is
//! above.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Source text without comments, and without what is only there for tests.
fn without_tests(source: &str) -> String {
    let mut kept = String::new();
    let mut lines = source.lines().map(|l| l.find("//").map_or(l, |at| &l[..at]));
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        // The item that follows: up to its semicolon, or to the brace that closes it. Formatted code puts that brace
        // where the item begins.
        let indent = line.len() - line.trim_start().len();
        for line in lines.by_ref() {
            let at_start = line.len() - line.trim_start().len() == indent;
            let end = line.trim_end();
            if at_start && (end.ends_with(';') || end.ends_with('}')) {
                break;
            }
        }
    }
    kept
}

/// First names of the paths that follow each `crate::`, those in braces too.
fn used(source: &str) -> BTreeSet<String> {
    let name = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = BTreeSet::new();
    for (at, found) in source.match_indices("crate::") {
        let before = source[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue; // the end of another name
        }
        let rest = &source[at + found.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.insert(name(rest));
            continue;
        };
        let mut depth = 0;
        let mut begins = true;
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if c.is_whitespace() => {}
                _ if begins => {
                    names.insert(name(&list[i..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    names
}

fn read(path: &Path, module: &str, graph: &mut Graph) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            read(&entry.unwrap().path(), module, graph);
        }
    } else if path.extension().is_some_and(|e| e == "rs") && path.file_name().is_some_and(|n| n != "tests.rs") {
        let text = without_tests(&fs::read_to_string(path).unwrap());
        graph.entry(module.into()).or_default().extend(used(&text).into_iter().filter(|m| m != module));
    }
}

/// What each top-level module of the library uses.
fn modules() -> Graph {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut graph = Graph::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if module != "lib" {
            read(&path, &module, &mut graph);
        }
    }
    let known: BTreeSet<String> = graph.keys().cloned().collect();
    graph.values_mut().for_each(|uses| uses.retain(|m| known.contains(m))); // macros and re-exports have no module
    graph
}

/// The names along a cycle, if there is one.
fn cycle(graph: &Graph) -> Option<Vec<String>> {
    fn visit(graph: &Graph, at: &str, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<Vec<String>> {
        if let Some(from) = path.iter().position(|m| m == at) {
            return Some(path[from..].iter().cloned().chain([at.to_string()]).collect());
        }
        if done.contains(at) {
            return None;
        }
        path.push(at.into());
        let found = graph.get(at).into_iter().flatten().find_map(|next| visit(graph, next, path, done));
        path.pop();
        done.insert(at.into());
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|m| visit(graph, m, &mut Vec::new(), &mut done))
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let graph = modules();
    assert!(graph.len() > 20 && graph["data"].contains("augment"), "the sources were not read: {graph:?}");
    if let Some(cycle) = cycle(&graph) {
        panic!("modules that use each other: {}", cycle.join(" -> "));
    }
}

#[test]
fn paths_are_found_and_tests_are_not() {
    let source = "use crate::a::X;\nuse crate::{b::{Y, Z}, c};\nfn f() { crate::d::g(other_crate::h()) } // crate::e\n\
                  #[cfg(test)]\nmod tests {\n    use crate::f::W;\n}\n#[cfg(test)]\nuse crate::g::V;\nfn h() -> crate::i::U {}\n";
    let names: Vec<String> = used(&without_tests(source)).into_iter().collect();
    assert_eq!(names, ["a", "b", "c", "d", "i"]);
}

#[test]
fn a_cycle_is_named() {
    let graph = |edges: &[(&str, &str)]| {
        let mut g = Graph::new();
        edges.iter().for_each(|(a, b)| {
            g.entry(a.to_string()).or_default().insert(b.to_string());
            g.entry(b.to_string()).or_default();
        });
        g
    };
    assert_eq!(cycle(&graph(&[("a", "b"), ("a", "c"), ("b", "c")])), None);
    assert_eq!(cycle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])).unwrap(), ["b", "c", "b"]);
}
