//! Columns of a Parquet file whose claims were checked. The library that reads Parquet takes a file at its word: it reserves what
//! headers announce and panics where they contradict each other. So sizes, counts and places are held against the file first, and what
//! is left runs behind a guard.

use super::thrift::{LIST, STRUCT, Thrift, wrong};
use super::{DataError, Result};
use crate::guard::guarded;
use crate::{files, limits};
use ::parquet::basic::Encoding;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ParquetMetaData;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What is wrong, in words.
type Told<T> = std::result::Result<T, String>;

/// Fields of a schema, and groups in groups.
const MOST_FIELDS: u64 = 1 << 16;
const DEEPEST: usize = 64;
/// Rows that a file of any size may have, and how many more there may be for each of its bytes. Runs of one value take no room, so a
/// file of some kilobytes could truly hold billions of rows.
const ROWS: u64 = 1 << 20;
const ROWS_PER_BYTE: u64 = 8;
/// How much more a column may be than its compressed bytes where it is above the limit on unpacked bytes.
const UNPACKED: u64 = 4;
/// Rows that are read at a time, so that what they hold can be counted.
const BATCH: usize = 64;
/// Most bytes of a page whose values share beginnings with those before them: each of its values may be as long as the page.
const SHARED_PAGE: usize = 4 << 20;

/// An open file.
pub(crate) struct ParquetFile {
    path: PathBuf,
    bytes: u64,
    reader: SerializedFileReader<File>,
}

impl ParquetFile {
    /// Open a file and check what it says of its rows.
    pub fn open(path: &Path) -> Result<ParquetFile> {
        let not = |why: String| {
            DataError::layout(path, format!("not a readable Parquet file ({why}); is the download complete?"))
        };
        let mut file = files::open(path).map_err(DataError::io(path))?;
        let bytes = file.metadata().map_err(DataError::io(path))?.len();
        check_footer(&mut file, bytes).map_err(|e| not(e.to_string()))?;
        let read = guarded("the Parquet reader", || SerializedFileReader::new(file));
        let reader = read.map_err(not)?.map_err(|e| not(e.to_string()))?;
        let file = ParquetFile { path: path.into(), bytes, reader };
        file.check_rows().map_err(not)?;
        Ok(file)
    }

    pub fn meta(&self) -> &ParquetMetaData {
        self.reader.metadata()
    }

    pub fn schema(&self) -> &SchemaDescriptor {
        self.meta().file_metadata().schema_descr()
    }

    /// Rows of each group.
    pub fn groups(&self) -> Vec<u64> {
        self.meta().row_groups().iter().map(|g| g.num_rows().max(0) as u64).collect()
    }

    /// Most rows or values that the file may claim.
    fn most(&self) -> u64 {
        self.bytes.saturating_mul(ROWS_PER_BYTE).max(ROWS)
    }

    fn check_rows(&self) -> Told<()> {
        let mut all = 0_u64;
        for (g, group) in self.meta().row_groups().iter().enumerate() {
            let rows =
                u64::try_from(group.num_rows()).map_err(|_| format!("row group {g} has {} rows", group.num_rows()))?;
            all = all.saturating_add(rows);
        }
        limits::ENTRIES.check(all)?;
        if all > self.most() || all >= u64::from(u32::MAX) {
            return Err(format!("{all} rows in {} bytes", self.bytes));
        }
        Ok(())
    }

    /// Bytes of a column in a row group when it is unpacked; an error if what is said of it cannot be.
    pub fn unpacked(&self, group: usize, leaf: usize) -> Told<u64> {
        let group_meta = self.meta().row_groups().get(group).ok_or("the row group is gone")?;
        let column = group_meta.columns().get(leaf).ok_or("the row group lacks the column")?;
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let (packed, unpacked) = (column.compressed_size(), column.uncompressed_size());
        let numbers = [start, column.data_page_offset(), packed, unpacked, column.num_values()];
        let [start, data, packed, unpacked, values] = numbers.map(|n| u64::try_from(n).unwrap_or(u64::MAX));
        let end = start.saturating_add(packed);
        if end > self.bytes || data > self.bytes {
            return Err(format!("the column lies at bytes {start} to {end} of {}", self.bytes));
        }
        let rows = group_meta.num_rows().max(0) as u64;
        if values < rows || values > self.most() {
            return Err(format!("{values} values for {rows} rows in a file of {} bytes", self.bytes));
        }
        if unpacked > packed.saturating_mul(UNPACKED) {
            limits::UNPACKED_BYTES.check(unpacked)?;
        }
        Ok(unpacked)
    }

    /// What `f` makes of a column of a row group; it is told how many bytes the values may have. What is wrong with the column, a
    /// panic included, is an error.
    pub fn read<T>(&self, group: usize, leaf: usize, f: impl FnOnce(ColumnReader, u64) -> Told<T>) -> Told<T> {
        self.unpacked(group, leaf)?;
        guarded("the Parquet reader", || {
            let rows = self.reader.get_row_group(group).map_err(|e| e.to_string())?;
            let column = rows.metadata().column(leaf);
            let (start, bytes) = column.byte_range();
            check_pages(&self.path, start, bytes).map_err(|e| e.to_string())?;
            let descr = column.column_descr_ptr();
            let values = column.num_values().max(0) as u64;
            let inner = rows.get_column_page_reader(leaf).map_err(|e| e.to_string())?;
            let pages = Pages { inner, descr: descr.clone(), values };
            let most = limits::UNPACKED_BYTES.get().max(bytes.saturating_mul(UNPACKED));
            f(get_column_reader(descr, Box::new(pages)), most)
        })?
    }
}

/// Footer and schema: neither beyond the file, nor so deep that reading it takes more stack than there is.
fn check_footer(file: &mut File, bytes: u64) -> io::Result<()> {
    let mut tail = [0; 8];
    let at = bytes.checked_sub(8).ok_or_else(|| wrong(format!("a file of {bytes} bytes")))?;
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut tail)?;
    let [a, b, c, d, magic @ ..] = tail;
    if &magic != b"PAR1" {
        return Err(wrong("it does not end with PAR1"));
    }
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    let from =
        at.checked_sub(length).ok_or_else(|| wrong(format!("a footer of {length} bytes in a file of {bytes}")))?;
    limits::SMALL_BYTES.check(length).map_err(wrong)?;
    file.seek(SeekFrom::Start(from))?;
    let mut footer = vec![0; length as usize];
    file.read_exact(&mut footer)?;
    file.seek(SeekFrom::Start(0))?;
    Thrift(Cursor::new(&footer)).fields(|footer, id, kind| {
        if (id, kind) != (2, LIST) {
            return Ok(false);
        }
        let (fields, kind) = footer.list()?;
        if kind != STRUCT || fields > MOST_FIELDS {
            return Err(wrong(format!("a schema of {fields} fields")));
        }
        check_schema(footer, fields).map(|()| true)
    })
}

/// A schema is a list in which each group tells how many of those behind it are its children.
fn check_schema(footer: &mut Thrift<Cursor<&Vec<u8>>>, fields: u64) -> io::Result<()> {
    let mut open: Vec<i64> = Vec::new(); // children that are still to come, group in group
    for _ in 0..fields {
        let mut children = 0;
        footer.fields(|field, id, kind| {
            if (id, kind) == (5, 5) {
                children = field.int()?;
            }
            Ok((id, kind) == (5, 5))
        })?;
        if children < 0 || children as u64 > fields {
            return Err(wrong(format!("a group of {children} fields in a schema of {fields}")));
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if children > 0 {
            open.push(children);
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        if open.len() > DEEPEST {
            return Err(wrong(format!("groups nested deeper than {DEEPEST}")));
        }
    }
    Ok(())
}

/// Headers of a column's pages: where they say they end, and what they unpack to.
fn check_pages(path: &Path, start: u64, bytes: u64) -> io::Result<()> {
    let mut pages = Thrift(BufReader::new(files::open(path)?));
    let (mut at, end) = (start, start.saturating_add(bytes));
    let mut sum = 0_u64;
    while at < end {
        pages.0.seek(SeekFrom::Start(at))?;
        let (mut unpacked, mut packed) = (-1, -1);
        pages.fields(|page, id, kind| {
            match (id, kind) {
                (2, 5) => unpacked = page.int()?,
                (3, 5) => packed = page.int()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let (Ok(unpacked), Ok(packed)) = (u64::try_from(unpacked), u64::try_from(packed)) else {
            return Err(wrong(format!("the page at byte {at} has no size")));
        };
        let next = pages.0.stream_position()?.saturating_add(packed);
        if next > end {
            return Err(wrong(format!("the page at byte {at} ends at {next}, its column at {end}")));
        }
        at = next;
        sum = sum.saturating_add(unpacked);
        if sum > bytes.saturating_mul(UNPACKED) {
            limits::UNPACKED_BYTES.check(sum).map_err(wrong)?;
        }
    }
    Ok(())
}

/// Pages whose counts are checked after they are unpacked and before anything is reserved for their values.
struct Pages {
    inner: Box<dyn PageReader>,
    descr: ColumnDescPtr,
    /// Values that are still to come.
    values: u64,
}

impl Pages {
    fn check(&mut self, page: &Page) -> Told<()> {
        let n = u64::from(page.num_values());
        if let Page::DictionaryPage { buf, .. } = page {
            // A number takes four bytes at least, and so does the length of a text.
            return if n <= buf.len() as u64 / 4 { Ok(()) } else { Err(format!("{n} values in {} bytes", buf.len())) };
        }
        self.values =
            self.values.checked_sub(n).ok_or_else(|| format!("a page of {n} values where {} are left", self.values))?;
        let (buf, levels) = match page {
            Page::DataPage { buf, rep_level_encoding, def_level_encoding, .. } => {
                let mut at = 0;
                for (most, encoding) in
                    [(self.descr.max_rep_level(), rep_level_encoding), (self.descr.max_def_level(), def_level_encoding)]
                {
                    if most > 0 {
                        at += v1_levels(buf.get(at..).unwrap_or_default(), *encoding, most, n)?;
                    }
                }
                (buf, at)
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                (buf, *def_levels_byte_len as usize + *rep_levels_byte_len as usize)
            }
            Page::DictionaryPage { .. } => return Ok(()),
        };
        let values = buf.get(levels..).ok_or("a page that is shorter than its levels")?;
        let lists = match page.encoding() {
            _ if values.is_empty() => 0, // nothing but nulls
            Encoding::DELTA_BINARY_PACKED | Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY if buf.len() <= SHARED_PAGE => 2,
            Encoding::DELTA_BYTE_ARRAY => {
                return Err(format!("a page of {} bytes of texts with shared beginnings", buf.len()));
            }
            _ => 0,
        };
        let mut at = 0;
        for _ in 0..lists {
            let (count, end) = delta(&values[at..]).ok_or("a page of differences that is cut off")?;
            if count > n {
                return Err(format!("{count} differences for {n} values"));
            }
            at += end;
        }
        Ok(())
    }
}

/// Bytes of the levels of a page of the first version.
fn v1_levels(buf: &[u8], encoding: Encoding, most: i16, values: u64) -> Told<usize> {
    match encoding {
        Encoding::RLE => {
            let &[a, b, c, d] = buf.get(..4).ok_or("a page without levels")? else { return Ok(0) };
            Ok((u32::from_le_bytes([a, b, c, d]) as usize).saturating_add(4))
        }
        // An old way: as many bits as the highest level takes.
        _ => Ok((values as usize * (16 - most.leading_zeros() as usize)).div_ceil(8)),
    }
    .and_then(|n| if n <= buf.len() { Ok(n) } else { Err("a page that is shorter than its levels".into()) })
}

/// Number of values that are written as differences, and where they end.
fn delta(data: &[u8]) -> Option<(u64, usize)> {
    let mut at = 0;
    let varint = |at: &mut usize| -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let &byte = data.get(*at)?;
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    };
    let (block, minis, count) = (varint(&mut at)?, varint(&mut at)?, varint(&mut at)?);
    varint(&mut at)?; // the first value
    if minis == 0 || minis > data.len() as u64 || block > 1 << 20 || block % minis != 0 {
        return None;
    }
    let (per, minis) = (block / minis, minis as usize);
    let mut left = count.saturating_sub(1);
    if per == 0 && left > 0 {
        return None;
    }
    while left > 0 {
        varint(&mut at)?; // the least difference
        let widths = data.get(at..at.checked_add(minis)?)?;
        at += minis;
        for &width in widths.iter() {
            if left == 0 {
                break;
            }
            at = at.checked_add((u64::from(width) * per / 8) as usize)?;
            left = left.saturating_sub(per);
        }
    }
    Some((count, at.min(data.len()))) // the padding at the end may be missing
}

impl Iterator for Pages {
    type Item = std::result::Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> std::result::Result<Option<Page>, ParquetError> {
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.check(page).map_err(ParquetError::General)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> std::result::Result<Option<PageMetadata>, ParquetError> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> std::result::Result<(), ParquetError> {
        self.inner.skip_next_page()
    }
}

/// What was read of a column.
pub(crate) struct Values<T> {
    pub values: Vec<T>,
    /// Definition levels; none of a column in which every value must be there.
    pub defined: Vec<i16>,
    /// Repetition levels; none of a column without lists.
    pub repeated: Vec<i16>,
}

/// Read `n` rows. `size` are the bytes of a value; all may have `most`.
pub(crate) fn records<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    n: usize,
    most: u64,
    size: impl Fn(&T::T) -> usize,
) -> Told<Values<T::T>> {
    let mut out = Values { values: Vec::new(), defined: Vec::new(), repeated: Vec::new() };
    let (mut rows, mut counted, mut bytes) = (0, 0, 0_u64);
    while rows < n {
        let Values { values, defined, repeated } = &mut out;
        let read = reader.read_records(BATCH.min(n - rows), Some(defined), Some(repeated), values);
        let (read, ..) = read.map_err(|e| e.to_string())?;
        if read == 0 {
            return Err(format!("{rows} rows where {n} were announced"));
        }
        rows += read;
        bytes += out.values[counted..].iter().map(|v| size(v) as u64).sum::<u64>();
        counted = out.values.len();
        if bytes > most {
            limits::UNPACKED_BYTES.check(bytes)?;
        }
    }
    Ok(out)
}

/// Read `n` values of a column without lists; none for null.
pub(crate) fn values<T: DataType>(
    reader: ColumnReaderImpl<T>,
    n: usize,
    most: u64,
    size: impl Fn(&T::T) -> usize,
) -> Told<Vec<Option<T::T>>> {
    let Values { values, defined, .. } = records(reader, n, most, size)?;
    // A required column has no levels; elsewhere the highest level marks a value.
    let most = defined.iter().copied().max().unwrap_or(0);
    if defined.is_empty() || values.len() == n {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    Ok(defined.iter().map(|&l| if l == most { values.next() } else { None }).collect())
}

/// Bytes of a text or an image.
pub(crate) fn length(value: &ByteArray) -> usize {
    value.len()
}
