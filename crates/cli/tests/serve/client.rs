//! HTTP over plain sockets: whole answers, and events as they come.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let value = |l: &str| {
            let (n, v) = l.split_once(':')?;
            n.eq_ignore_ascii_case(name).then(|| v.trim().to_string())
        };
        self.head.lines().find_map(value)
    }

    /// Status and type of an error, and the field that is to blame.
    pub fn problem(&self) -> (u16, String, String) {
        let e = self.json()["error"].clone();
        assert_eq!(e["code"], self.status, "{e}");
        assert!(e["message"].as_str().is_some_and(|m| !m.is_empty()), "{e}");
        let text = |k: &str| e[k].as_str().unwrap_or_default().to_string();
        (self.status, text("type"), text("field"))
    }
}

/// A connection with a patience of some seconds.
pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// What is sent for a request; a `host` among the headers takes the place of the server's own.
pub fn written(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|h| h.0 == "host") {
        head += &format!("host: {to}\r\n");
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    [head.as_bytes(), b"connection: close\r\n\r\n", body].concat()
}

/// Ask and wait for the whole answer.
pub fn ask(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = connect(to);
    // A server may answer before it has read all.
    let _ = stream.write_all(&written(to, method, path, headers, body));
    answer(stream)
}

/// The answer that comes on a connection.
pub fn answer(stream: TcpStream) -> Answer {
    let mut from = BufReader::new(stream);
    let (status, head) = head(&mut from);
    let mut body = Vec::new();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        while let Some(chunk) = chunk(&mut from) {
            body.extend(chunk);
        }
    } else {
        let _ = from.read_to_end(&mut body);
    }
    Answer { status, head, body }
}

fn head(from: &mut impl BufRead) -> (u16, String) {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        head += &line;
    }
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, head)
}

fn chunk(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut size = String::new();
    from.read_line(&mut size).ok()?;
    let n = usize::from_str_radix(size.trim(), 16).ok().filter(|n| *n > 0)?;
    let mut bytes = vec![0; n + 2];
    from.read_exact(&mut bytes).ok()?;
    bytes.truncate(n);
    Some(bytes)
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    pub id: Option<u64>,
    pub name: String,
    pub data: Value,
}

/// Events as they come; pings are passed over, but counted.
pub struct Events {
    from: BufReader<TcpStream>,
    pending: String,
    pub status: u16,
    pub pings: usize,
}

impl Events {
    pub fn open(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Events {
        let mut stream = connect(to);
        let body = if method == "POST" { body.to_string() } else { String::new() };
        stream.write_all(&written(to, method, path, headers, body.as_bytes())).unwrap();
        let mut from = BufReader::new(stream);
        let (status, _) = head(&mut from);
        Events { from, pending: String::new(), status, pings: 0 }
    }

    /// Leave in the middle.
    pub fn cut(self) {
        let _ = self.from.get_ref().shutdown(Shutdown::Both);
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((one, rest)) = self.pending.split_once("\n\n") {
                let (one, rest) = (one.to_string(), rest.to_string());
                self.pending = rest;
                let line = |name: &str| one.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
                if one.starts_with(':') {
                    self.pings += 1;
                    continue;
                }
                let data = serde_json::from_str(line("data:").unwrap()).unwrap();
                let id = line("id:").map(|i| i.parse().unwrap());
                return Some(Event { id, name: line("event:").unwrap().into(), data });
            }
            self.pending += &String::from_utf8(chunk(&mut self.from)?).unwrap();
        }
    }
}
