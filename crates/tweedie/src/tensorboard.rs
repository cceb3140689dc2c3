//! Scalars as TensorBoard reads them: an [`EventWriter`] appends to an event file.
//!
//! An event file is a row of TFRecords (length, checksum of the length, data, checksum of the data), each an `Event`
//! message. The few fields a scalar needs are encoded by hand: a protobuf library would be larger than this file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};

/// Appends scalars to an event file.
pub struct EventWriter {
    path: PathBuf,
    out: BufWriter<File>,
}

impl EventWriter {
    /// A new event file in `dir`. `resumed` is the step that a resumed run starts from: TensorBoard then forgets what
    /// earlier files of the folder say about later steps.
    pub fn create(dir: &Path, resumed: Option<u64>) -> Result<EventWriter> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Files are read in the order of their names: seconds, then nanoseconds, each of fixed width.
        let name =
            format!("events.out.tfevents.{:010}.{:09}.{}", now.as_secs(), now.subsec_nanos(), std::process::id());
        let path = dir.join(name);
        let file = File::create_new(&path).map_err(|e| Error::file(&path, e))?;
        let mut w = EventWriter { path, out: BufWriter::new(file) };
        let mut version = Message::event(0);
        version.text(3, "brain.Event:2");
        w.record(&version)?;
        if let Some(step) = resumed {
            let mut log = Message::default();
            log.integer(1, 1); // SessionLog.status = START
            let mut start = Message::event(step + 1);
            start.message(7, &log);
            w.record(&start)?;
        }
        w.flush()?;
        Ok(w)
    }

    /// Add one value of the curve called `tag`.
    pub fn scalar(&mut self, tag: &str, value: f32, step: u64) -> Result<()> {
        self.scalars(&[(tag, value)], step)
    }

    /// Add a value to each of several curves.
    pub fn scalars(&mut self, values: &[(&str, f32)], step: u64) -> Result<()> {
        let mut summary = Message::default();
        for (tag, value) in values {
            let mut entry = Message::default();
            entry.text(1, tag);
            entry.float(2, *value);
            summary.message(1, &entry);
        }
        let mut event = Message::event(step);
        event.message(5, &summary);
        self.record(&event)
    }

    /// Hand everything to the system, so that a viewer sees it.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|e| Error::file(&self.path, e))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn record(&mut self, event: &Message) -> Result<()> {
        self.out.write_all(&frame(&event.0)).map_err(|e| Error::file(&self.path, e))
    }
}

/// A TFRecord.
fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

/// The format masks its checksums because data that contain their own checksum weaken it.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// An `Event` of now at `step`.
    fn event(step: u64) -> Message {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut m = Message::default();
        m.tag(1, 1);
        m.0.extend(now.to_le_bytes());
        m.integer(2, step);
        m
    }

    fn tag(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn varint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.0.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.0.push(v as u8);
    }

    fn integer(&mut self, field: u64, v: u64) {
        self.tag(field, 0);
        self.varint(v);
    }

    fn float(&mut self, field: u64, v: f32) {
        self.tag(field, 5);
        self.0.extend(v.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, v: &[u8]) {
        self.tag(field, 2);
        self.varint(v.len() as u64);
        self.0.extend(v);
    }

    fn text(&mut self, field: u64, v: &str) {
        self.bytes(field, v.as_bytes());
    }

    fn message(&mut self, field: u64, v: &Message) {
        self.bytes(field, &v.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of each record, its checksums verified.
    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            assert_eq!(u32_at(8), masked_crc(&bytes[..8]));
            assert_eq!(u32_at(12 + n), masked_crc(&bytes[12..12 + n]));
            all.push(bytes[12..12 + n].to_vec());
            bytes = &bytes[16 + n..];
        }
        all
    }

    /// After the wall time (9 bytes), which a test cannot know.
    fn body(record: &[u8]) -> &[u8] {
        assert_eq!(record[0], 0x09);
        &record[9..]
    }

    #[test]
    fn the_checksum_is_that_of_the_published_vectors() {
        // RFC 3720, B.4: 32 zero bytes.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        // The length field of every file's first record as TensorFlow writes it: 24 bytes.
        assert_eq!(frame(&[0; 24])[..12], [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn scalars_are_encoded_field_by_field() {
        let dir = tempfile::tempdir().unwrap();
        let mut w = EventWriter::create(dir.path(), None).unwrap();
        w.scalar("ab", 1.5, 300).unwrap();
        w.flush().unwrap();
        let all = records(&std::fs::read(w.path()).unwrap());
        assert_eq!(all.len(), 2);
        assert_eq!(body(&all[0]), b"\x10\x00\x1a\x0dbrain.Event:2");
        // step 300 = 0xac 0x02; summary { value { tag "ab", simple_value 1.5 } }
        assert_eq!(body(&all[1]), b"\x10\xac\x02\x2a\x0b\x0a\x09\x0a\x02ab\x15\x00\x00\xc0\x3f");
    }

    #[test]
    fn a_resumed_run_purges_later_steps() {
        let dir = tempfile::tempdir().unwrap();
        let w = EventWriter::create(dir.path(), Some(41)).unwrap();
        let all = records(&std::fs::read(w.path()).unwrap());
        assert_eq!(body(&all[1]), b"\x10\x2a\x3a\x02\x08\x01");
    }
}
