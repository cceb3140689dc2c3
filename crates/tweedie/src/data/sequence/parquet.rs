//! Captions or text in Parquet files: a column of strings, of lists of strings, or of lists of structs with a text field.
//! Row groups of images and of texts are read when they are needed, each into a cache of its own.

use super::super::columns::{ParquetFile, Values, length, records};
use super::super::parquet::{Images, columns, image_column, image_of, label_column, leaf, read_ahead};
use super::super::row_groups::{GroupCache, RowGroups};
use super::super::split::Split;
use super::super::{DataError, Extent, Image, Locality, Result};
use super::detect::files;
use super::json::{CAPTIONS, INNER, TEXTS};
use super::{SequenceFormat, SequenceOptions, Splits, Task, TextSource, Texts};
use ::parquet::basic::Type;
use ::parquet::column::reader::ColumnReader;
use ::parquet::schema::types::SchemaDescriptor;
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;

struct ParquetTexts {
    groups: RowGroups,
    /// The column with images and what was read of it.
    images: Option<(String, GroupCache<Images>)>,
    /// The column with the names of images, beside their bytes, and what was read of it.
    names: Option<(String, GroupCache<Vec<Vec<String>>>)>,
    columns: Vec<String>,
    texts: GroupCache<Vec<Vec<String>>>,
}

impl ParquetTexts {
    /// The group that holds byte `at` of all texts, and the bytes before it.
    fn group_at(&self, at: u64) -> (usize, u64) {
        let (mut g, mut before) = (0, 0);
        for (i, w) in self.texts.weights().iter().enumerate() {
            g = i;
            if before + w > at {
                break;
            }
            before += w;
        }
        (g, before)
    }

    /// Group `g`; `row` is named where it cannot be read.
    fn group(&self, g: usize, row: usize) -> Result<Arc<Vec<Vec<String>>>> {
        let read = self.texts.get(&self.groups, g, |path, group| read_texts(path, group, &self.columns));
        read.map_err(|e| DataError::bad_text(self.groups.place(row), e))
    }
}

impl TextSource for ParquetTexts {
    fn len(&self) -> usize {
        self.groups.rows
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        let (g, row) = self.groups.find(i)?;
        Ok(self.group(g, i)?.get(row).cloned().unwrap_or_default())
    }

    fn image(&self, i: usize) -> Result<Option<Image>> {
        let Some((column, cache)) = &self.images else { return Ok(None) };
        image_of(&self.groups, cache, column, i, &|_, height| height).map(Some)
    }

    fn place(&self, i: usize) -> String {
        let name = self.file_name(i).map_or(String::new(), |name| format!(" ({name})"));
        format!("{}{name}, column `{}`", self.groups.place(i), self.columns.join(", "))
    }

    fn file_name(&self, i: usize) -> Option<String> {
        let (column, cache) = self.names.as_ref()?;
        let ((g, row), columns) = (self.groups.find(i).ok()?, std::slice::from_ref(column));
        let names = cache.get(&self.groups, g, |path, group| read_texts(path, group, columns)).ok()?;
        names.get(row)?.first().filter(|name| !name.is_empty()).cloned()
    }

    fn locality(&self) -> Option<Locality> {
        Some(match &self.images {
            Some((_, cache)) => cache.locality(&self.groups),
            None => self.texts.locality(&self.groups),
        })
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        match &self.images {
            Some((_, cache)) => cache.extent(&self.groups, i, false),
            None => self.texts.extent(&self.groups, i, false),
        }
    }

    fn read_ahead(&self, examples: &[u32]) {
        if let Some(Ok((g, _))) = examples.first().map(|&i| self.groups.find(i as usize)) {
            // How often a stream comes back to a group is not known.
            self.texts.read_ahead(&self.groups, g, u32::MAX, |path, group| read_texts(path, group, &self.columns));
        }
        if let Some((column, cache)) = &self.images {
            read_ahead(&self.groups, cache, column, examples);
        }
    }

    fn bytes(&self) -> u64 {
        self.texts.total()
    }

    fn near_byte(&self, at: u64) -> usize {
        self.groups.starts.get(self.group_at(at).0).map_or(0, |&s| s as usize)
    }

    fn at_byte(&self, at: u64) -> Result<(usize, f64)> {
        let (g, before) = self.group_at(at);
        let share = (at - before.min(at)) as f64 / self.texts.weights().get(g).copied().unwrap_or(0).max(1) as f64;
        let rows = self.group(g, self.groups.starts.get(g).map_or(0, |&s| s as usize))?;
        let lengths = rows.iter().map(|r| r.iter().map(String::len).sum::<usize>());
        let (total, mut seen) = (lengths.clone().sum::<usize>() as f64, 0.0);
        for (i, n) in lengths.enumerate() {
            if seen + n as f64 > share * total {
                return Ok((self.groups.starts[g] as usize + i, (share * total - seen) / n as f64));
            }
            seen += n as f64;
        }
        Ok((self.groups.starts[g] as usize, 0.0))
    }
}

/// The strings of each row, over all `columns`.
fn read_texts(path: &Path, group: usize, columns: &[String]) -> std::result::Result<Vec<Vec<String>>, String> {
    let file = ParquetFile::open(path).map_err(|e| e.to_string())?;
    let rows = *file.groups().get(group).ok_or("the row group is gone")? as usize;
    let mut all: Vec<Vec<String>> = vec![Vec::new(); rows];
    for column in columns {
        let leaf = leaf(file.schema(), column).ok_or("the column is gone")?;
        read_column(&file, group, leaf, &mut all).map_err(|e| format!("`{column}`: {e}"))?;
    }
    Ok(all)
}

fn read_column(
    file: &ParquetFile,
    group: usize,
    leaf: usize,
    out: &mut [Vec<String>],
) -> std::result::Result<(), String> {
    let descr = file.schema().column(leaf);
    let (most, lists) = (descr.max_def_level(), descr.max_rep_level() > 0);
    let read = file.read(group, leaf, |reader, bytes| match reader {
        ColumnReader::ByteArrayColumnReader(r) => records(r, out.len(), bytes, length),
        _ => Err("the column does not hold text".into()),
    });
    let Values { values, defined, repeated } = read?;
    let text = |v: &::parquet::data_type::ByteArray| String::from_utf8_lossy(v.data()).into_owned();
    if most == 0 {
        out.iter_mut().zip(&values).for_each(|(row, v)| row.push(text(v)));
        return Ok(());
    }
    // The highest definition level marks a value, repetition level 0 the beginning of a row.
    let (mut row, mut values) = (0, values.iter());
    for (i, &level) in defined.iter().enumerate() {
        let begins = !lists || repeated.get(i).copied().unwrap_or(0) == 0;
        row += usize::from(begins);
        if level == most
            && let (Some(v), Some(r)) = (values.next(), row.checked_sub(1).and_then(|r| out.get_mut(r)))
        {
            r.push(text(v));
        }
    }
    Ok(())
}

/// One file of a data set: its columns and row groups.
struct Shard {
    columns: Vec<String>,
    image: Option<String>,
    /// The column with the images' names.
    names: Option<String>,
    /// Rows, bytes of images, of texts, of names.
    groups: Vec<[u64; 4]>,
}

#[derive(Default)]
struct Building {
    groups: RowGroups,
    columns: Vec<String>,
    image: Option<String>,
    names: Option<String>,
    weights: [Vec<u64>; 3],
}

pub(crate) fn open(root: &Path, task: Task, options: &SequenceOptions) -> Result<Splits> {
    let files = files(root, SequenceFormat::Parquet)?;
    let parts = files.par_iter().map(|f| read_shard(f, task, options)).collect::<Result<Vec<_>>>()?;
    let mut building: [Option<Building>; 3] = Default::default();
    for (path, part) in files.iter().zip(parts) {
        let split = Split::of_file(path, root).unwrap_or(Split::Train);
        let b = building[split as usize].get_or_insert_default();
        if b.groups.files.is_empty() {
            (b.columns, b.image, b.names) = (part.columns.clone(), part.image.clone(), part.names.clone());
        } else if (&b.columns, &b.image, &b.names) != (&part.columns, &part.image, &part.names) {
            let first = b.groups.files[0].display();
            return Err(DataError::layout(path, format!("the columns are not those of {first}")));
        }
        let rows: Vec<u64> = part.groups.iter().map(|g| g[0]).collect();
        let counts = b.groups.add(path, &rows);
        for (group, _) in part.groups.iter().zip(counts).filter(|(_, counts)| *counts) {
            b.weights.iter_mut().zip(&group[1..]).for_each(|(w, bytes)| w.push(*bytes));
        }
    }
    let limit = options.open.cache_bytes as u64;
    let splits = building.map(|b| {
        let Building { groups, columns, image, names, weights: [images, texts, name_bytes] } = b?;
        let images = image.map(|column| (column, GroupCache::new(images, limit)));
        let texts = GroupCache::new(texts, if images.is_some() { limit / 8 } else { limit });
        let names = names.map(|column| (column, GroupCache::new(name_bytes, limit / 8)));
        Some(Arc::new(ParquetTexts { groups, images, names, columns, texts }) as Texts)
    });
    Ok(Splits { splits, notes: Vec::new() })
}

fn read_shard(path: &Path, task: Task, options: &SequenceOptions) -> Result<Shard> {
    let file = ParquetFile::open(path)?;
    let schema = file.schema();
    let (wanted, usual, setting) = match task {
        Task::Text => (&options.text_column, &TEXTS[..], "text_column"),
        _ => (&options.caption_column, &CAPTIONS[..], "caption_column"),
    };
    let columns = text_columns(path, schema, wanted.as_deref(), usual, setting)?;
    let image = match task {
        Task::Text => None,
        _ => Some(image_column(path, schema, options.open.image_column.as_deref())?),
    };
    let leaves: Vec<usize> = columns.iter().filter_map(|c| leaf(schema, c)).collect();
    let image_leaf = image.as_ref().and_then(|c| leaf(schema, c));
    // Hugging Face's image: a struct of `bytes` and `path`.
    let names = image.as_ref().and_then(|c| c.strip_suffix(".bytes")).map(|c| format!("{c}.path"));
    let names = names.filter(|c| text_leaf(schema, c).is_some());
    let name_leaf = names.as_ref().and_then(|c| leaf(schema, c));
    let mut groups = Vec::new();
    for (g, rows) in file.groups().into_iter().enumerate() {
        let bytes = |leaf: usize| match rows {
            0 => Ok(0),
            _ => file.unpacked(g, leaf).map_err(|e| DataError::layout(path, format!("row group {g}: {e}"))),
        };
        let texts = leaves.iter().try_fold(0, |sum: u64, &l| Ok(sum.saturating_add(bytes(l)?)))?;
        groups.push([rows, image_leaf.map_or(Ok(0), bytes)?, texts, name_leaf.map_or(Ok(0), bytes)?]);
    }
    Ok(Shard { columns, image, names, groups })
}

/// A leaf's path without the levels that lists add.
fn simple(path: &str) -> String {
    path.split('.')
        .filter(|p| !matches!(*p, "list" | "element" | "item" | "array" | "bag" | "array_element"))
        .collect::<Vec<_>>()
        .join(".")
}

/// The leaves with the texts of `name`: the column itself, or the text field of its structs.
fn text_leaf(schema: &SchemaDescriptor, name: &str) -> Option<String> {
    let texts = schema.columns().iter().filter(|c| c.physical_type() == Type::BYTE_ARRAY && c.max_rep_level() <= 1);
    let paths: Vec<String> = texts.map(|c| c.path().string()).collect();
    let is = |wanted: &str| paths.iter().find(|p| **p == wanted || simple(p) == wanted).cloned();
    is(name).or_else(|| INNER.iter().find_map(|field| is(&format!("{name}.{field}"))))
}

fn text_columns(
    path: &Path,
    schema: &SchemaDescriptor,
    wanted: Option<&str>,
    usual: &[&str],
    setting: &str,
) -> Result<Vec<String>> {
    let what = setting.trim_end_matches("_column");
    let lacks = |which: String| {
        let columns = columns(schema);
        DataError::layout(path, format!("no {what} column{which}; the columns are {columns}; set data.{setting}"))
    };
    if let Some(wanted) = wanted {
        let names = wanted.split(',').map(str::trim).filter(|n| !n.is_empty());
        return names.map(|n| text_leaf(schema, n).ok_or_else(|| lacks(format!(" `{n}` of strings")))).collect();
    }
    if let Some(column) = usual.iter().find_map(|n| text_leaf(schema, n)) {
        return Ok(vec![column]);
    }
    // caption_0, caption_1, …
    let numbered = |name: &str| {
        name.rsplit_once('_')
            .is_some_and(|(n, i)| matches!(n, "caption" | "sentence" | "text") && i.parse::<u32>().is_ok())
    };
    let fields = schema.root_schema().get_fields().iter().map(|f| f.name()).filter(|n| numbered(n));
    let found: Vec<String> = fields.filter_map(|n| text_leaf(schema, n)).collect();
    if found.is_empty() { Err(lacks(String::new())) } else { Ok(found) }
}

/// What a file is for: classes if it has labels, else captions if it has images, else text.
pub(crate) fn guess(path: &Path) -> Result<Task> {
    let file = ParquetFile::open(path)?;
    let schema = file.schema();
    let has = |usual: &[&str]| text_columns(path, schema, None, usual, "").is_ok();
    let image = image_column(path, schema, None).is_ok();
    Ok(match (image, label_column(path, schema, None).is_ok()) {
        (true, false) if has(&CAPTIONS) => Task::Caption,
        (false, _) if has(&TEXTS) => Task::Text,
        _ => Task::Class,
    })
}
