//! Messages between ranks over plain TCP: who is there, what is needed to begin, and who is alive.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest message that is read; the true ones are far shorter.
const LONGEST: usize = 16 << 20;

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    /// The first of every connection.
    Hello {
        /// What both ends must know.
        token: String,
        rank: usize,
        size: usize,
    },
    /// Bytes of the sender, or of all ranks.
    Data(Vec<Vec<u8>>),
    /// The sender is alive. Operations begun so far: its own, or those of all ranks.
    Beat(Vec<u64>),
    /// A rank has ended in order after so many operations, and why.
    Left { rank: usize, begun: u64, why: String },
    /// A rank is dead, silent, or never came.
    Lost { rank: usize, why: String },
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let number = |n: u64| n.to_le_bytes().to_vec();
        let tag = match self {
            Message::Hello { token, rank, size } => {
                parts.extend([token.clone().into_bytes(), number(*rank as u64), number(*size as u64)]);
                1
            }
            Message::Data(all) => {
                parts.extend(all.iter().cloned());
                2
            }
            Message::Beat(begun) => {
                parts.extend(begun.iter().map(|n| number(*n)));
                3
            }
            Message::Left { rank, begun, why } => {
                parts.extend([number(*rank as u64), number(*begun), why.clone().into_bytes()]);
                4
            }
            Message::Lost { rank, why } => {
                parts.extend([number(*rank as u64), why.clone().into_bytes()]);
                5
            }
        };
        let mut body = vec![tag];
        for part in parts {
            body.extend((part.len() as u32).to_le_bytes());
            body.extend(part);
        }
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    }

    fn decode(body: &[u8]) -> Option<Message> {
        let (&tag, mut rest) = body.split_first()?;
        let mut parts: Vec<Vec<u8>> = Vec::new();
        while !rest.is_empty() {
            let (len, after) = rest.split_first_chunk::<4>()?;
            let (part, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            parts.push(part.to_vec());
            rest = after;
        }
        let number = |i: usize| Some(u64::from_le_bytes(parts.get(i)?.as_slice().try_into().ok()?));
        let text = |i: usize| Some(String::from_utf8_lossy(parts.get(i)?).into_owned());
        Some(match tag {
            1 => Message::Hello { token: text(0)?, rank: number(1)? as usize, size: number(2)? as usize },
            2 => Message::Data(parts),
            3 => Message::Beat((0..parts.len()).map(number).collect::<Option<_>>()?),
            4 => Message::Left { rank: number(0)? as usize, begun: number(1)?, why: text(2)? },
            5 => Message::Lost { rank: number(0)? as usize, why: text(1)? },
            _ => return None,
        })
    }
}

/// One end of a connection. Messages are read as they come, in pieces where they must.
pub(super) struct Wire {
    stream: TcpStream,
    got: Vec<u8>,
}

impl Wire {
    pub fn new(stream: TcpStream) -> io::Result<Wire> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(Wire { stream, got: Vec::new() })
    }

    /// Another handle to the same connection, to write to while this one reads.
    pub fn writer(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        send(&mut self.stream, message)
    }

    /// The next message; nothing if none has come within `wait`. A closed connection is an error.
    pub fn receive(&mut self, wait: Duration) -> io::Result<Option<Message>> {
        let until = Instant::now() + wait;
        loop {
            if let Some(message) = self.next_whole()? {
                return Ok(Some(message));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.got.extend(&piece[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn next_whole(&mut self) -> io::Result<Option<Message>> {
        let Some((len, rest)) = self.got.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let message = Message::decode(body).ok_or(ErrorKind::InvalidData)?;
        self.got.drain(..4 + len);
        Ok(Some(message))
    }
}

/// Write a message at once.
pub(super) fn send(to: &mut TcpStream, message: &Message) -> io::Result<()> {
    to.write_all(&message.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_through_whole_and_nonsense_does_not() {
        let all = [
            Message::Hello { token: "t".into(), rank: 1, size: 3 },
            Message::Data(vec![vec![], vec![1, 2, 3]]),
            Message::Beat(vec![7, u64::MAX]),
            Message::Left { rank: 2, begun: 9, why: "no data".into() },
            Message::Lost { rank: 1, why: String::new() },
        ];
        for m in all {
            let bytes = m.encode();
            assert_eq!(Message::decode(&bytes[4..]).as_ref(), Some(&m));
            // A piece of it is not a message; data may end with any of its parts, and each end of a beat is one.
            assert_ne!(Message::decode(&bytes[4..bytes.len() - 1]).as_ref(), Some(&m));
        }
        for nonsense in [&b""[..], b"\x09", b"\x01", b"\x03\x02\0\0\0ab", b"\x02\xff\xff\xff\xff", b"GET / HTTP/1.1"] {
            assert_eq!(Message::decode(nonsense), None, "{nonsense:?}");
        }
    }
}
