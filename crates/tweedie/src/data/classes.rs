//! Labels as data sets write them, and their names.

use super::{DataError, Result};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// A file with one class per line. A line is a display name, or an identifier (a folder name such as `n01440764`) followed
/// by a display name.
#[derive(Clone, Debug)]
pub(crate) struct ClassList {
    path: PathBuf,
    lines: Vec<String>,
}

impl ClassList {
    pub fn read(path: &Path) -> Result<ClassList> {
        let text = crate::files::read_to_string(path, &crate::limits::SMALL_BYTES).map_err(DataError::io(path))?;
        let mut lines: Vec<String> = text.lines().map(|l| l.trim().to_string()).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        if let Some(at) = lines.iter().position(String::is_empty) {
            return Err(DataError::layout(path, format!("line {} is empty; give one class name per line", at + 1)));
        }
        if lines.is_empty() {
            return Err(DataError::layout(path, "the class list is empty; give one class name per line"));
        }
        Ok(ClassList { path: path.into(), lines })
    }

    /// Names for the labels 0..n.
    pub fn names(&self, n: usize) -> Result<Vec<String>> {
        if self.lines.len() < n {
            return Err(DataError::layout(
                &self.path,
                format!(
                    "{} class names, but the data has labels up to {}; add the missing lines",
                    self.lines.len(),
                    n - 1
                ),
            ));
        }
        Ok(self.lines.clone())
    }

    /// Order and display names for classes with identifiers (`ids`, sorted): by identifier if every one of them begins a
    /// line, otherwise line by line in sorted order.
    fn arrange(&self, ids: &[String]) -> Result<(Vec<String>, Vec<String>)> {
        let split = |line: &String| match line.split_once([' ', '\t', ',']) {
            Some((id, name)) if !name.trim().is_empty() => (id.to_string(), name.trim().to_string()),
            _ => (line.clone(), line.clone()),
        };
        let whole: BTreeSet<&String> = self.lines.iter().collect();
        if ids.iter().all(|id| whole.contains(id)) {
            return Ok((self.lines.clone(), self.lines.clone()));
        }
        let pairs: Vec<(String, String)> = self.lines.iter().map(split).collect();
        let firsts: BTreeSet<&String> = pairs.iter().map(|p| &p.0).collect();
        if ids.iter().all(|id| firsts.contains(id)) {
            return Ok(pairs.into_iter().unzip());
        }
        if self.lines.len() == ids.len() {
            return Ok((ids.to_vec(), self.lines.clone()));
        }
        let stranger = ids.iter().find(|id| !whole.contains(id) && !firsts.contains(id));
        Err(DataError::layout(
            &self.path,
            format!(
                "{} lines for {} classes, and class \"{}\" is in none of them; list every class, one per line",
                self.lines.len(),
                ids.len(),
                stranger.map_or("?", |s| s)
            ),
        ))
    }
}

/// A label as written in the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RawLabel {
    Number(i64),
    Name(String),
}

/// Turns labels of all splits into positions in one list of names.
pub(crate) struct LabelMap {
    by_name: HashMap<String, u32>,
    names: Vec<String>,
}

impl LabelMap {
    /// `given` are the names stored in the data, if any. `labels` are all labels that occur; `path` stands in messages.
    pub fn new<'a>(
        path: &Path,
        labels: impl Iterator<Item = &'a RawLabel>,
        given: Option<Vec<String>>,
        list: Option<&ClassList>,
    ) -> Result<LabelMap> {
        let mut strings = BTreeSet::new();
        let mut most = -1;
        let mut least = 0;
        for label in labels {
            match label {
                RawLabel::Name(s) => {
                    if !strings.contains(s) {
                        strings.insert(s.clone());
                    }
                }
                RawLabel::Number(n) => {
                    most = most.max(*n);
                    least = least.min(*n);
                }
            }
        }
        if !strings.is_empty() && most >= 0 {
            return Err(DataError::layout(path, "some labels are numbers and others are names; use one kind"));
        }
        if least < 0 {
            return Err(DataError::layout(
                path,
                format!("label {least}: labels must count from 0 (a test split without labels is often written as -1)"),
            ));
        }
        if !strings.is_empty() {
            let mut ids: Vec<String> = strings.into_iter().collect();
            if let Some(given) = given.filter(|g| ids.iter().all(|id| g.contains(id))) {
                ids = given;
            }
            return LabelMap::of_ids(&ids, list);
        }
        if most >= 1 << 20 {
            return Err(DataError::layout(
                path,
                format!("label {most} is too large for a class number; is it another column?"),
            ));
        }
        let n = (most + 1) as usize;
        let names = match (list, given) {
            (Some(list), _) => list.names(n)?,
            (None, Some(given)) if given.len() >= n => given,
            (None, Some(given)) => {
                return Err(DataError::layout(
                    path,
                    format!("label {most}, but the file names only {} classes", given.len()),
                ));
            }
            (None, None) => (0..n).map(|i| i.to_string()).collect(),
        };
        Ok(LabelMap { by_name: HashMap::new(), names })
    }

    /// Classes that are identified by strings, sorted.
    pub fn of_ids(ids: &[String], list: Option<&ClassList>) -> Result<LabelMap> {
        let (order, names) = match list {
            Some(list) => list.arrange(ids)?,
            None => (ids.to_vec(), ids.to_vec()),
        };
        let by_name = order.into_iter().enumerate().map(|(i, s)| (s, i as u32)).collect();
        Ok(LabelMap { by_name, names })
    }

    pub fn id(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The position of a label that was among those given to [`LabelMap::new`].
    pub fn get(&self, label: &RawLabel) -> u32 {
        match label {
            RawLabel::Number(n) => *n as u32,
            RawLabel::Name(s) => self.id(s).unwrap_or(0),
        }
    }

    pub fn into_names(self) -> Vec<String> {
        self.names
    }
}
