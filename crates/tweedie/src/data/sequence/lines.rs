//! Text files and JSON lines. Opening reads each file once and notes where every so-many-th line begins; lines are read
//! where they lie. Plain text that is to be packed is cut into pieces of some kilobytes, at line ends where there are any.

use super::super::sources::{beyond, place_of};
use super::super::split::Split;
use super::super::{DataError, Result};
use super::detect::files;
use super::json::{self, TEXTS};
use super::text_file::TextFile;
use super::{Layout, SequenceFormat, SequenceOptions, Splits, TextSource, Texts};
use crate::limits;
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;

/// Lines from one mark to the next: the index of 100 million lines takes 50 MB.
const EVERY: usize = 32;
/// Bytes from one mark to the next, about: of very long lines, none is read to get to another.
const FAR: u64 = 1 << 20;
/// Most bytes of a piece of packed text, before it ends at a line.
const PIECE: u64 = 1 << 14;
/// Least bytes of a piece: words are hardly ever longer, so that it can end after one.
const LEAST_PIECE: u64 = 1 << 8;
/// Pieces that a small file is cut into, so that a share of it can be held out.
const PIECES: u64 = 32;
/// A line is read up to here; the rest cannot matter to a sequence.
const LONGEST: usize = 1 << 20;
const NO_UTF8: &str = "not UTF-8 text";

/// Where a run of examples begins.
struct Mark {
    offset: u64,
    line: u64,
    /// Number of the first of them in the file.
    example: usize,
}

struct Indexed {
    file: TextFile,
    marks: Vec<Mark>,
    examples: usize,
}

/// What an example is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// A line that is not blank.
    Line,
    /// Some kilobytes of the file as they are.
    Piece,
    /// A line of JSON.
    Json,
}

struct LineSource {
    files: Vec<Indexed>,
    /// Number of the first example of each file.
    starts: Vec<usize>,
    examples: usize,
    unit: Unit,
    column: Option<String>,
}

impl LineSource {
    /// The file of an example, and the example's number in it.
    fn file_of(&self, i: usize) -> Result<(&Indexed, usize)> {
        match self.starts.partition_point(|&s| s <= i).checked_sub(1).filter(|_| i < self.examples) {
            Some(f) => Ok((&self.files[f], i - self.starts[f])),
            None => Err(beyond(i, self.examples)),
        }
    }

    /// A piece of a stream without the lines that are no UTF-8, and what is wrong with those.
    fn piece(&self, i: usize) -> Result<(String, Option<DataError>)> {
        let (f, k) = self.file_of(i)?;
        let end = f.marks.get(k + 1).map_or(f.file.size, |m| m.offset);
        let bytes = match String::from_utf8(f.file.bytes(f.marks[k].offset, end)?) {
            Ok(text) => return Ok((text, None)),
            Err(e) => e.into_bytes(),
        };
        let (mut text, mut bad) = (String::new(), Vec::new());
        for (number, line) in (f.marks[k].line..).zip(bytes.split_inclusive(|&b| b == b'\n')) {
            match std::str::from_utf8(line) {
                Ok(line) => text += line,
                Err(_) => bad.push(number.to_string()),
            }
        }
        let lines = if bad.len() == 1 { "line" } else { "lines" };
        let place = format!("{}, {lines} {}", f.file.path.display(), bad.join(", "));
        Ok((text, Some(DataError::bad_text(place, NO_UTF8))))
    }

    /// The bytes of a line and its number, from 1.
    fn raw(&self, i: usize) -> Result<(Vec<u8>, u64)> {
        let (f, k) = self.file_of(i)?;
        let m = f.marks.partition_point(|m| m.example <= k).saturating_sub(1);
        let mark = f.marks.get(m).ok_or_else(|| beyond(i, self.examples))?;
        let mut lines = Lines::new(&f.file, mark.offset, mark.line);
        for _ in mark.example..k {
            lines.next_line(0)?;
        }
        let line = lines.next_line(LONGEST)?;
        Ok((line.unwrap_or_default(), lines.number))
    }
}

impl TextSource for LineSource {
    fn len(&self) -> usize {
        self.examples
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        if self.unit == Unit::Piece {
            return Ok(vec![self.piece(i)?.0]);
        }
        let ((text, line), path) = (self.raw(i)?, &self.file_of(i)?.0.file.path);
        let bad = |message: String| DataError::bad_text(format!("{}, line {line}", path.display()), message);
        let text = as_text(text).ok_or_else(|| bad(NO_UTF8.into()))?;
        if self.unit == Unit::Line {
            return Ok(vec![text]);
        }
        if text.len() >= LONGEST - 4 {
            return Err(bad(format!("a line of JSON of more than {LONGEST} bytes")));
        }
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| bad(format!("not JSON ({e})")))?;
        let object = value.as_object().ok_or_else(|| bad("not a JSON object".into()))?;
        json::field(object, self.column.as_deref(), &TEXTS).ok_or_else(|| {
            let column = self.column.as_ref().map_or("text".into(), |c| format!("`{c}`"));
            bad(format!("no field {column}; the fields are {}", json::names(object)))
        })
    }

    fn texts_and_bad(&self, i: usize) -> Result<(Vec<String>, Option<DataError>)> {
        if self.unit == Unit::Piece {
            let (text, bad) = self.piece(i)?;
            return Ok((vec![text], bad));
        }
        Ok((self.texts(i)?, None))
    }

    fn place(&self, i: usize) -> String {
        place_of(self.file_of(i), |(f, k)| {
            let path = f.file.path.display();
            if self.unit == Unit::Piece {
                return format!("{path}, from byte {}", f.marks[k].offset);
            }
            // Blank lines are no examples, so the line's number takes a look.
            self.raw(i).map_or_else(|_| format!("{path}, example {k}"), |(_, line)| format!("{path}, line {line}"))
        })
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.file.size).sum()
    }

    fn at_byte(&self, at: u64) -> Result<(usize, f64)> {
        let (mut f, mut at) = (0, at);
        while f + 1 < self.files.len() && at >= self.files[f].file.size {
            at -= self.files[f].file.size;
            f += 1;
        }
        let file = &self.files[f];
        let m = file.marks.partition_point(|m| m.offset <= at).saturating_sub(1);
        let from = file.marks.get(m).map_or(0, |m| m.offset);
        let to = file.marks.get(m + 1).map_or(file.file.size, |m| m.offset);
        // Between marks by proportion: lines of one file are much alike, and a document is found by its share.
        let first = file.marks.get(m).map_or(0, |m| m.example);
        let run = file.marks.get(m + 1).map_or(file.examples, |m| m.example).saturating_sub(first);
        let x = (at - from.min(at)) as f64 / (to - from).max(1) as f64 * run as f64;
        let k = (x as usize).min(run.saturating_sub(1));
        let row = (self.starts[f] + first + k).min(self.examples.saturating_sub(1));
        Ok((row, (x - k as f64).clamp(0.0, 1.0)))
    }

    fn is_stream(&self) -> bool {
        self.unit == Unit::Piece
    }
}

/// Reads on from an offset, line by line, without blank ones.
struct Lines<'a> {
    file: &'a TextFile,
    at: u64,
    /// The line that was read last; before any, the one that comes.
    number: u64,
    next: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl<'a> Lines<'a> {
    fn new(file: &'a TextFile, at: u64, number: u64) -> Lines<'a> {
        Lines { file, at, number, next: number, buffer: Vec::new(), used: 0 }
    }

    /// Offset of the byte that comes next.
    fn offset(&self) -> u64 {
        self.at - (self.buffer.len() - self.used) as u64
    }

    fn refill(&mut self) -> Result<bool> {
        self.buffer.resize(1 << 13, 0);
        let n = self.file.read_at(self.at, &mut self.buffer)?;
        self.buffer.truncate(n);
        (self.used, self.at) = (0, self.at + n as u64);
        Ok(n > 0)
    }

    /// The next line that is not blank, up to `longest` bytes of it (0: only whether there is one).
    fn next_line(&mut self, longest: usize) -> Result<Option<Vec<u8>>> {
        let (mut line, mut blank, mut any) = (Vec::new(), true, false);
        loop {
            if self.used == self.buffer.len() && !self.refill()? {
                if any && !blank {
                    self.number = self.next;
                    return Ok(Some(line));
                }
                return Ok(None);
            }
            any = true;
            let rest = &self.buffer[self.used..];
            let end = rest.iter().position(|&b| b == b'\n');
            let part = &rest[..end.unwrap_or(rest.len())];
            blank = blank && part.iter().all(u8::is_ascii_whitespace);
            line.extend(&part[..part.len().min(longest.saturating_sub(line.len()))]);
            self.used += end.map_or(rest.len(), |e| e + 1);
            if end.is_some() {
                let number = self.next;
                self.next += 1;
                if !blank {
                    self.number = number;
                    return Ok(Some(line));
                }
                (blank, any) = (true, false);
                line.clear();
            }
        }
    }
}

/// A line as text; none if it is no UTF-8. A character that the limit has cut is dropped.
fn as_text(mut line: Vec<u8>) -> Option<String> {
    let limited = line.len() >= LONGEST;
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    let e = match String::from_utf8(line) {
        Ok(text) => return Some(text),
        Err(e) => e,
    };
    let (valid, cut) = (e.utf8_error().valid_up_to(), e.utf8_error().error_len().is_none());
    let mut line = e.into_bytes();
    line.truncate(valid);
    if limited && cut { String::from_utf8(line).ok() } else { None }
}

/// One pass over a file.
fn index(path: &Path, unit: Unit) -> Result<Indexed> {
    let file = TextFile::open(path)?;
    let (mut marks, mut examples) = (Vec::<Mark>::new(), 0);
    if unit == Unit::Piece {
        marks = pieces(&file)?;
        examples = marks.len();
        return Ok(Indexed { file, marks, examples });
    }
    let mut lines = Lines::new(&file, 0, 1);
    loop {
        let (offset, line) = (lines.offset(), lines.next);
        if lines.next_line(0)?.is_none() {
            break;
        }
        let near = |m: &Mark| examples - m.example < EVERY && offset - m.offset < FAR;
        if !marks.last().is_some_and(near) {
            marks.push(Mark { offset, line, example: examples });
        }
        examples += 1;
    }
    Ok(Indexed { file, marks, examples })
}

/// Pieces of at most about [`PIECE`] bytes that end after a line, else after a space, else after a whole character.
fn pieces(file: &TextFile) -> Result<Vec<Mark>> {
    let (mut marks, mut at, mut line) = (Vec::<Mark>::new(), 0, 1);
    let size = (file.size / PIECES).clamp(LEAST_PIECE, PIECE) as usize;
    let mut bytes = vec![0; 2 * size];
    while at < file.size {
        marks.push(Mark { offset: at, line, example: marks.len() });
        let n = file.read_at(at, &mut bytes)?;
        if n == 0 {
            break; // the file has shrunk
        }
        let piece = &bytes[..n];
        let end = if n <= size {
            n
        } else {
            let tail = &piece[size..];
            let after = |test: &dyn Fn(u8) -> bool| tail.iter().position(|&b| test(b)).map(|i| size + i + 1);
            let whole = || tail.iter().position(|b| b & 0xc0 != 0x80).map_or(n, |i| size + i);
            after(&|b| b == b'\n').or_else(|| after(&|b| b == b' ')).unwrap_or_else(whole)
        };
        line += piece[..end].iter().filter(|&&b| b == b'\n').count() as u64;
        at += end as u64;
    }
    Ok(marks)
}

pub(crate) fn open(root: &Path, format: SequenceFormat, options: &SequenceOptions) -> Result<Splits> {
    let unit = match (format, options.layout) {
        (SequenceFormat::JsonLines, _) => Unit::Json,
        (_, Layout::Packed) => Unit::Piece,
        (_, Layout::Lines) => Unit::Line,
    };
    let mut files: Vec<(std::path::PathBuf, Option<Split>)> =
        files(root, format)?.into_iter().map(|f| (f.clone(), Split::of_file(&f, root))).collect();
    let mut notes = Vec::new();
    // Beside files that name their split, others are notes about the data.
    if files.iter().any(|(_, s)| s.is_some()) {
        for (file, _) in files.iter().filter(|(_, s)| s.is_none()) {
            notes.push(format!("{} names no split and is left out", file.display()));
        }
        files.retain(|(_, s)| s.is_some());
    }
    let indexed = files.par_iter().map(|(f, _)| index(f, unit)).collect::<Result<Vec<_>>>()?;
    let mut parts: [Option<LineSource>; 3] = Default::default();
    for ((_, split), file) in files.iter().zip(indexed) {
        let part = parts[split.unwrap_or(Split::Train) as usize].get_or_insert_with(|| LineSource {
            files: vec![],
            starts: vec![],
            examples: 0,
            unit,
            column: options.text_column.clone(),
        });
        if file.examples > 0 {
            part.starts.push(part.examples);
            part.examples += file.examples;
            limits::ENTRIES.check(part.examples as u64).map_err(|why| DataError::layout(root, why))?;
            part.files.push(file);
        }
    }
    // A field that the first line lacks is a wrong setting, not a bad row.
    for part in parts.iter().flatten().filter(|p| p.unit == Unit::Json && p.examples > 0) {
        if let Err(e) = part.texts(0) {
            return Err(DataError::layout(root, format!("{e}; set data.text_column")));
        }
    }
    Ok(Splits { splits: parts.map(|p| p.map(|p| Arc::new(p) as Texts)), notes })
}
