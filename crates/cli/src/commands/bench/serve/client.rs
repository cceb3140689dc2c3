//! One request after another over plain sockets.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::{Failure, Result};

/// A client that hears nothing for so long gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is asked, and where.
pub struct Target {
    pub address: SocketAddr,
    pub key: Option<String>,
    pub path: &'static str,
    pub body: Value,
}

/// What became of a request.
#[derive(Debug)]
pub enum End {
    /// Milliseconds in all, and until the first step.
    Done { total: f64, first: f64 },
    /// 429.
    Refused,
    /// It was accepted, or should have been, and came to nothing.
    Failed(String),
}

impl Target {
    fn send(&self, method: &str, path: &str, body: &str) -> io::Result<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let key = self.key.as_ref().map_or(String::new(), |k| format!("authorization: Bearer {k}\r\n"));
        let (host, length) = (self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{key}content-length: {length}\r\n\r\n"
        );
        stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())?;
        Ok(BufReader::new(stream))
    }

    /// Status and body.
    pub fn get(&self, path: &str) -> io::Result<(u16, String)> {
        let mut from = self.send("GET", path, "")?;
        let status = head(&mut from)?;
        let mut body = Vec::new();
        from.read_to_end(&mut body)?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// A body that is JSON.
    pub fn json(&self, path: &str) -> Result<Value> {
        let (status, body) = self.get(path)?;
        match serde_json::from_str(&body) {
            Ok(value) if status == 200 => Ok(value),
            _ => Err(Failure::input(format!("{}{path} answers {status}: {body}", self.address))),
        }
    }

    /// A number of `/metrics`.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").ok()?;
        text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Ask with this seed and read to the end.
    pub fn ask(&self, seed: u64) -> End {
        self.try_ask(seed).unwrap_or_else(|e| End::Failed(e.to_string()))
    }

    fn try_ask(&self, seed: u64) -> io::Result<End> {
        let begun = Instant::now();
        let ms = || begun.elapsed().as_secs_f64() * 1e3;
        let mut body = self.body.clone();
        body["seed"] = seed.into();
        let mut from = self.send("POST", self.path, &body.to_string())?;
        match head(&mut from)? {
            200 => {}
            429 => return Ok(End::Refused),
            status => return Ok(End::Failed(format!("status {status}"))),
        }
        let (mut first, mut line) = (None, String::new());
        loop {
            line.clear();
            // Sizes of chunks stand between the lines; none looks like the name of an event.
            match from.read_line(&mut line)? {
                0 => return Ok(End::Failed("the stream has no end".into())),
                _ if line.starts_with("event: step") => first = first.or_else(|| Some(ms())),
                _ if line.starts_with("event: done") => {
                    return Ok(End::Done { total: ms(), first: first.unwrap_or_else(ms) });
                }
                _ if line.starts_with("event: error") => {
                    line.clear();
                    from.read_line(&mut line)?;
                    return Ok(End::Failed(line));
                }
                _ => {}
            }
        }
    }
}

/// The status, read with all that stands before the body.
fn head(from: &mut impl BufRead) -> io::Result<u16> {
    let (mut status, mut line) = (0, String::new());
    while from.read_line(&mut line)? > 0 && line != "\r\n" {
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest.split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(0);
        }
        line.clear();
    }
    Ok(status)
}

/// RFC 4648.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let n = three.iter().enumerate().fold(0_u32, |n, (i, b)| n | u32::from(*b) << (16 - 8 * i));
        for i in 0..4 {
            let letter = LETTERS[(n >> (18 - 6 * i)) as usize & 63] as char;
            text.push(if i <= three.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_that_of_everybody() {
        let of = |text: &str| super::base64(text.as_bytes());
        assert_eq!(["", "f", "fo", "foo", "foob"].map(of), ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }
}
