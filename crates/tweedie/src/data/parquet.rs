//! Parquet as Hugging Face `datasets` writes it: an image column of struct{bytes, path} (or plain bytes), a label column of
//! numbers or names, class names in the file's `huggingface` metadata. Labels are read at opening; row groups of images
//! when they are needed, kept compressed in a cache of limited size.

use super::classes::{ClassList, LabelMap, RawLabel};
use super::columns::{ParquetFile, length, values};
use super::detect::files_below;
use super::row_groups::{GroupCache, RowGroups};
use super::split::Split;
use super::{DataError, Extent, Found, Image, ImageSource, Item, Locality, Needed, OpenOptions, Result, Source};
use ::parquet::basic::Type;
use ::parquet::column::reader::ColumnReader;
use ::parquet::data_type::ByteArray;
use ::parquet::schema::types::SchemaDescriptor;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A row group's images: compressed bytes, none where the row has none.
pub(crate) type Images = Vec<Option<ByteArray>>;

struct ParquetSource {
    groups: RowGroups,
    column: String,
    labels: Vec<u32>,
    images: GroupCache<Images>,
}

impl ImageSource for ParquetSource {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        self.get_top(i, &|_, height| height)
    }

    fn get_top(&self, i: usize, needed: Needed) -> Result<Item> {
        let image = image_of(&self.groups, &self.images, &self.column, i, needed)?;
        Ok(Item { image, label: self.label(i) })
    }

    fn label(&self, i: usize) -> u32 {
        self.labels.get(i).copied().unwrap_or(u32::MAX)
    }

    fn place(&self, i: usize) -> String {
        format!("{}, column `{}`", self.groups.place(i), self.column)
    }

    fn locality(&self) -> Option<Locality> {
        Some(self.images.locality(&self.groups))
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        self.images.extent(&self.groups, i, false)
    }

    fn read_ahead(&self, examples: &[u32]) {
        read_ahead(&self.groups, &self.images, &self.column, examples);
    }
}

/// Read the row group of these rows, each of which will be asked for once.
pub(crate) fn read_ahead(groups: &RowGroups, cache: &GroupCache<Images>, column: &str, rows: &[u32]) {
    if let Some(Ok((g, _))) = rows.first().map(|&row| groups.find(row as usize)) {
        cache.read_ahead(groups, g, rows.len() as u32, |path, group| read_images(path, group, column));
    }
}

/// The decoded image of row `i`, as far as it is needed.
pub(crate) fn image_of(
    groups: &RowGroups,
    cache: &GroupCache<Images>,
    column: &str,
    i: usize,
    needed: Needed,
) -> Result<Image> {
    let (g, row) = groups.find(i)?;
    let corrupt =
        |message: String| DataError::Corrupt { place: format!("{}, column `{column}`", groups.place(i)), message };
    let images = cache.get(groups, g, |path, group| read_images(path, group, column)).map_err(corrupt)?;
    let bytes = images
        .get(row)
        .and_then(Option::as_ref)
        .ok_or_else(|| corrupt("the row has no image bytes (only files with embedded images can be read)".into()))?;
    Image::decode_top(bytes.data(), needed).map_err(corrupt)
}

fn read_images(path: &Path, group: usize, column: &str) -> std::result::Result<Images, String> {
    let file = ParquetFile::open(path).map_err(|e| e.to_string())?;
    let column = leaf(file.schema(), column).ok_or("the column is gone")?;
    let n = *file.groups().get(group).ok_or("the row group is gone")? as usize;
    file.read(group, column, |reader, most| match reader {
        ColumnReader::ByteArrayColumnReader(r) => values(r, n, most, length),
        _ => Err("the image column does not hold bytes".into()),
    })
}

/// Position of the leaf column with this dotted path.
pub(crate) fn leaf(schema: &SchemaDescriptor, path: &str) -> Option<usize> {
    schema.columns().iter().position(|c| c.path().string() == path)
}

/// One file of a data set: its columns, labels and row groups.
struct Shard {
    image: String,
    labels: Vec<RawLabel>,
    names: Option<Vec<String>>,
    groups: Vec<(u64, u64)>, // rows, bytes of images
}

/// A split whose files are being added.
struct Building {
    groups: RowGroups,
    column: String,
    labels: Vec<u32>,
    weights: Vec<u64>,
}

pub(crate) fn open(root: &Path, options: &OpenOptions, classes: Option<&ClassList>) -> Result<Found> {
    let files = files_below(root, ".parquet", 3)?;
    let mut parts = files
        .par_iter()
        .map(|f| Ok((f.clone(), Split::of_file(f, root).unwrap_or(Split::Train), read_shard(f, options)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut notes = Vec::new();
    let unlabelled = |(_, split, part): &(PathBuf, Split, Shard)| {
        *split == Split::Test && part.labels.contains(&RawLabel::Number(-1))
    };
    if parts.iter().any(unlabelled) && parts.iter().any(|(_, split, _)| *split != Split::Test) {
        // ImageNet's test split, for one, keeps its labels secret.
        parts.retain(|(_, split, _)| *split != Split::Test);
        notes.push("the test split has no labels (they are -1) and is left out".into());
    }
    let names = parts.iter().find_map(|(_, _, p)| p.names.clone());
    let map = LabelMap::new(root, parts.iter().flat_map(|(_, _, p)| p.labels.iter()), names, classes)?;
    let mut sources: [Option<Building>; 3] = Default::default();
    for (path, split, part) in &parts {
        let source = sources[*split as usize].get_or_insert_with(|| Building {
            groups: RowGroups::default(),
            column: part.image.clone(),
            labels: vec![],
            weights: vec![],
        });
        if source.column != part.image {
            return Err(DataError::layout(
                path,
                format!(
                    "the image column is `{}` here and `{}` in {}",
                    part.image,
                    source.column,
                    source.groups.files[0].display()
                ),
            ));
        }
        let rows: Vec<u64> = part.groups.iter().map(|g| g.0).collect();
        let counts = source.groups.add(path, &rows);
        source.weights.extend(part.groups.iter().zip(counts).filter(|(_, counts)| *counts).map(|(g, _)| g.1));
        source.labels.extend(part.labels.iter().map(|l| map.get(l)));
    }
    let [train, val, test] = sources.map(|s| {
        s.map(|s| {
            let images = GroupCache::new(s.weights, options.cache_bytes as u64);
            Arc::new(ParquetSource { groups: s.groups, column: s.column, labels: s.labels, images }) as Source
        })
    });
    Ok(Found { train, val, test, class_names: map.into_names(), channels: 3, notes })
}

fn read_shard(path: &Path, options: &OpenOptions) -> Result<Shard> {
    let file = ParquetFile::open(path)?;
    let (meta, schema) = (file.meta().file_metadata(), file.schema());
    let image = image_column(path, schema, options.image_column.as_deref())?;
    let label = label_column(path, schema, options.label_column.as_deref())?;
    let image_leaf = leaf(schema, &image).unwrap_or(0);
    let label_leaf = leaf(schema, &label).unwrap_or(0);
    let (mut labels, mut groups) = (Vec::new(), Vec::new());
    for (g, n) in file.groups().into_iter().enumerate() {
        let wrong = |column: &str, e: String| DataError::layout(path, format!("row group {g}, column `{column}`: {e}"));
        if n == 0 {
            groups.push((0, 0));
            continue;
        }
        let found = file.read(g, label_leaf, |reader, most| read_labels(reader, n as usize, most));
        for l in found.map_err(|e| wrong(&label, e))? {
            let row = labels.len();
            labels.push(l.ok_or_else(|| DataError::layout(path, format!("row {row}, column `{label}`: no label")))?);
        }
        groups.push((n, file.unpacked(g, image_leaf).map_err(|e| wrong(&image, e))?));
    }
    let names = meta
        .key_value_metadata()
        .and_then(|kv| kv.iter().find(|kv| kv.key == "huggingface"))
        .and_then(|kv| kv.value.as_deref())
        .and_then(|text| class_names(text, &label));
    Ok(Shard { image, labels, names, groups })
}

fn read_labels(reader: ColumnReader, n: usize, most: u64) -> std::result::Result<Vec<Option<RawLabel>>, String> {
    let name = |v: ByteArray| RawLabel::Name(String::from_utf8_lossy(v.data()).into_owned());
    Ok(match reader {
        ColumnReader::Int64ColumnReader(r) => map(values(r, n, most, |_| 8)?, RawLabel::Number),
        ColumnReader::Int32ColumnReader(r) => map(values(r, n, most, |_| 4)?, |v| RawLabel::Number(v.into())),
        ColumnReader::BoolColumnReader(r) => map(values(r, n, most, |_| 1)?, |v| RawLabel::Number(v.into())),
        ColumnReader::ByteArrayColumnReader(r) => map(values(r, n, most, length)?, name),
        _ => return Err("neither numbers nor names".into()),
    })
}

fn map<T>(values: Vec<Option<T>>, f: impl Fn(T) -> RawLabel) -> Vec<Option<RawLabel>> {
    values.into_iter().map(|v| v.map(&f)).collect()
}

/// `info.features.LABEL.names` of the `huggingface` metadata.
fn class_names(text: &str, label: &str) -> Option<Vec<String>> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let names = json.get("info")?.get("features")?.get(label)?.get("names")?;
    names.as_array()?.iter().map(|n| n.as_str().map(str::to_string)).collect()
}

/// The dotted path of the leaf with image bytes.
pub(crate) fn image_column(path: &Path, schema: &SchemaDescriptor, wanted: Option<&str>) -> Result<String> {
    let candidates: Vec<String> = schema
        .columns()
        .iter()
        .filter(|c| c.physical_type() == Type::BYTE_ARRAY && c.max_rep_level() == 0)
        .map(|c| c.path().string())
        .collect();
    let of = |name: &str| {
        let inner = format!("{name}.bytes");
        candidates.iter().find(|c| **c == inner || **c == name).cloned()
    };
    let found = match wanted {
        Some(name) => of(name),
        None => ["image", "img"]
            .iter()
            .find_map(|n| of(n))
            .or_else(|| candidates.iter().find(|c| c.ends_with(".bytes")).cloned()),
    };
    found.ok_or_else(|| {
        let what = wanted.map_or("no image column".into(), |w| format!("no image column `{w}`"));
        DataError::layout(
            path,
            format!("{what} (struct with `bytes`, or binary); the columns are {}; name the right one", columns(schema)),
        )
    })
}

pub(crate) fn label_column(path: &Path, schema: &SchemaDescriptor, wanted: Option<&str>) -> Result<String> {
    let usual = ["label", "labels", "fine_label", "class", "cls"];
    let names: &[&str] = wanted.as_ref().map_or(&usual[..], std::slice::from_ref);
    names.iter().find(|n| leaf(schema, n).is_some()).map(|n| n.to_string()).ok_or_else(|| {
        let what = wanted.map_or("no label column".into(), |w| format!("no label column `{w}`"));
        DataError::layout(path, format!("{what}; the columns are {}; name the right one", columns(schema)))
    })
}

/// Names of the columns, for messages; of very many, the first.
pub(crate) fn columns(schema: &SchemaDescriptor) -> String {
    some_names(schema.root_schema().get_fields().iter().map(|f| f.name()))
}

/// Names for messages: the first, if there are many.
pub(crate) fn some_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 50;
    let more = names.len().saturating_sub(SHOWN);
    let mut shown: Vec<String> =
        names.take(SHOWN).map(|n| format!("`{}`", n.chars().take(100).collect::<String>())).collect();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}
