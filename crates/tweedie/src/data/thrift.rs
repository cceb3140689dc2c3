//! As much of Thrift's compact protocol as it takes to look at what a Parquet file claims, before the library that reads it
//! believes the claims.

use std::io::{self, BufRead, Seek};

/// Kinds of values that are looked at.
pub(crate) const LIST: u8 = 9;
pub(crate) const STRUCT: u8 = 12;
/// Structs in lists in structs …
const DEEPEST: u32 = 32;

/// Reads values one after another.
pub(crate) struct Thrift<R>(pub R);

pub(crate) fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl<R: BufRead + Seek> Thrift<R> {
    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.0.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(wrong("a number of more than 64 bits"))
    }

    /// An integer of any width but a byte's.
    pub fn int(&mut self) -> io::Result<i64> {
        let n = self.varint()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// The fields of a struct: `f` gets the number and the kind of each and says whether it has read the value.
    pub fn fields(&mut self, f: impl FnMut(&mut Self, i64, u8) -> io::Result<bool>) -> io::Result<()> {
        self.fields_at(0, f)
    }

    fn fields_at(&mut self, depth: u32, mut f: impl FnMut(&mut Self, i64, u8) -> io::Result<bool>) -> io::Result<()> {
        let mut id = 0_i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            id = match head >> 4 {
                0 => self.int()?,
                step => id.saturating_add(i64::from(step)),
            };
            let kind = head & 15;
            if !f(self, id, kind)? && !matches!(kind, 1 | 2) {
                self.skip(kind, depth)?; // the kind of a truth is its value
            }
        }
    }

    /// Length and kind of a list.
    pub fn list(&mut self) -> io::Result<(u64, u8)> {
        let head = self.byte()?;
        let n = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        Ok((n, head & 15))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(wrong("values nested too deep"));
        }
        match kind {
            1..=3 => self.byte().map(|_| ()),
            4..=6 => self.varint().map(|_| ()),
            7 => self.0.seek_relative(8),
            8 => {
                let n = i64::try_from(self.varint()?).map_err(|_| wrong("a text of more than 63 bits' length"))?;
                self.0.seek_relative(n)
            }
            LIST | 10 => {
                let (n, kind) = self.list()?;
                (0..n).try_for_each(|_| self.element(kind, depth))
            }
            11 => {
                let n = self.varint()?;
                let kinds = if n > 0 { self.byte()? } else { 0 };
                (0..n).try_for_each(|_| {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 15, depth)
                })
            }
            STRUCT => self.fields_at(depth + 1, |_, _, _| Ok(false)),
            _ => Err(wrong(format!("a value of unknown kind {kind}"))),
        }
    }

    /// Fixed sizes are sought past, not read, so that a list of them must be held against the end of the file.
    fn element(&mut self, kind: u8, depth: u32) -> io::Result<()> {
        self.skip(kind, depth + 1)?;
        if matches!(kind, 7 | 8) && self.0.fill_buf()?.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn fields_are_found_and_others_passed_over() {
        // 1: i32 -2; 2: list of two i32; 3: true; 4: "ab"; 9: struct with a double; 10: i64 5
        let bytes = [
            0x15, 0x03, 0x19, 0x25, 0x02, 0x04, 0x11, 0x18, 0x02, b'a', b'b', 0x5c, 0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0x16, 0x0a, 0,
        ];
        let mut seen = Vec::new();
        let look = |t: &mut Thrift<_>, id: i64, kind: u8| {
            let ours = matches!(id, 1 | 10);
            seen.push((id, kind, if ours { t.int()? } else { 0 }));
            Ok(ours)
        };
        Thrift(Cursor::new(&bytes)).fields(look).unwrap();
        assert_eq!(seen, [(1, 5, -2), (2, 9, 0), (3, 1, 0), (4, 8, 0), (9, 12, 0), (10, 6, 5)]);
    }

    #[test]
    fn endless_lists_and_depths_end() {
        // Lists of 2^63 numbers, doubles, texts, structs, in few bytes.
        for kind in [5, 7, 8, 12, 9, 11, 1] {
            let mut bytes = vec![0x19, 0xf0 | kind];
            bytes.extend([0xff; 8]);
            bytes.push(0x7f);
            bytes.extend([0x1c; 200]);
            let e = Thrift(Cursor::new(&bytes)).fields(|_, _, _| Ok(false)).unwrap_err();
            assert!(!e.to_string().is_empty());
        }
    }
}
