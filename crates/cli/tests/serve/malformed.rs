//! Requests that are none, by the thousand: the server answers or closes, and is as it was.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use serde_json::json;

use super::Server;
use super::client::{connect, written};

/// SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Sound requests to begin with.
fn seeds(server: &Server) -> Vec<Vec<u8>> {
    let object = json!({"size": "small", "color": "red", "shape": "cross", "x": 16, "y": 16});
    let request = |method: &str, path: &str, body: String| written(server.address, method, path, &[], body.as_bytes());
    vec![
        request("POST", "/v1/classify", json!({"model": "digits", "image": "iVBORw0KGgo=", "steps": 2}).to_string()),
        request(
            "POST",
            "/v1/caption",
            json!({"model": "shapes", "scene": {"objects": [object]}, "steps": 2, "stream": true}).to_string(),
        ),
        request(
            "POST",
            "/v1/generate",
            json!({"model": "shakespeare", "prompt": "A", "steps": 1, "pin": {"3": "b"}}).to_string(),
        ),
        request("POST", "/v1/score", json!({"model": "shakespeare", "text": "abc", "draws": 1}).to_string()),
        request("PATCH", "/v1/streams/r-0", json!({"pin": {"3": null}}).to_string()),
        request("GET", "/v1/scene.png?objects=%5B%5D", String::new()),
        request("GET", "/v1/examples/digits?index=5", String::new()),
        request("GET", "/v1/runs/compare?names=a,b", String::new()),
        request("DELETE", "/v1/models/none", String::new()),
        request("GET", "/static/index.html", String::new()),
    ]
}

fn mutate(bytes: &mut Vec<u8>, r: &mut Numbers) {
    let words: [&[u8]; 12] = [
        b"null",
        b"-1",
        b"1e999",
        b"\"\"",
        b"[",
        b"{\"a\":",
        b"\\u0000",
        b"\r\n",
        b"%00",
        b"../",
        b"\xff\xfe",
        b"18446744073709551616",
    ];
    for _ in 0..=r.below(4) {
        let at = r.below(bytes.len());
        match r.below(5) {
            0 => bytes[at] = r.next() as u8,
            1 => drop(bytes.splice(at..at, words[r.below(words.len())].iter().copied())),
            2 => bytes.truncate(at.max(1)),
            3 => drop(bytes.drain(at..(at + r.below(9)).min(bytes.len()))),
            _ => {
                let to = (at + r.below(40)).min(bytes.len());
                let copy = bytes[at..to].to_vec();
                bytes.splice(at..at, copy);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'x');
        }
    }
}

fn resident(server: &Server) -> f64 {
    server.metric("tweedie_resident_bytes") / 1e6
}

/// What comes back. A request that waits for more of itself is told after a moment that there is none.
fn exchanged(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(server.address);
    let _ = stream.write_all(bytes);
    let mut all = Vec::new();
    for patience in [150, 20_000] {
        stream.set_read_timeout(Some(Duration::from_millis(patience))).unwrap();
        match stream.read_to_end(&mut all) {
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                assert!(patience < 1000, "no end after {}", String::from_utf8_lossy(bytes));
                let _ = stream.shutdown(Shutdown::Write);
            }
            _ => break,
        }
    }
    all
}

fn bombard(server: &Server, count: usize, r: &mut Numbers) {
    let seeds = seeds(server);
    for i in 0..count {
        let mut bytes = seeds[i % seeds.len()].clone();
        mutate(&mut bytes, r);
        let all = exchanged(server, &bytes);
        assert!(
            !all.starts_with(b"HTTP/1.1 500"),
            "{}\n{}",
            String::from_utf8_lossy(&bytes),
            String::from_utf8_lossy(&all)
        );
    }
}

/// `count` of them from several clients at once: most of their time is spent waiting for what does not come.
fn bombard_together(server: &Server, count: usize, seed: u64) {
    const CLIENTS: usize = 16;
    std::thread::scope(|threads| {
        for client in 0..CLIENTS {
            threads.spawn(move || bombard(server, count.div_ceil(CLIENTS), &mut Numbers(seed + client as u64)));
        }
    });
}

fn survives(count: usize) {
    let server = Server::start(&["embedded:digits", "embedded:shapes", "embedded:shakespeare"]);
    bombard_together(&server, count / 4, 0);
    let before = resident(&server);
    bombard_together(&server, count - count / 4, 1000);
    let after = resident(&server);
    assert!(after < before + 40.0, "{before} MB, then {after} MB");
    assert_eq!(server.get("/health").status, 200);
    // What was cut off in the middle of a stream may take a moment to be let go.
    let busy = || server.metric("tweedie_queue") + server.metric("tweedie_rows");
    let start = std::time::Instant::now();
    while busy() > 0.0 && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(busy(), 0.0);
}

#[test]
fn a_thousand_malformed_requests_change_nothing() {
    survives(1000);
}

#[test]
#[ignore = "a minute"]
fn ten_thousand_malformed_requests_change_nothing() {
    survives(10_000);
}
