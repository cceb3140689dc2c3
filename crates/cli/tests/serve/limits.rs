//! What is refused, and how: wrong requests, wrong pages, wrong names, too much, too slow.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{Events, answer, ask, connect, written};
use super::{Server, digit};

#[test]
fn wrong_requests_name_what_is_wrong() {
    let server = Server::start(&["embedded:digits", "embedded:shakespeare"]);
    let raw = |body: &[u8]| ask(server.address, "POST", "/v1/classify", &[], body).problem();
    for body in [&b""[..], b"{", b"[1]", b"null", b"{\"model\": \"digits\"", b"\xff\xfe", b"{'model': 1}"] {
        assert_eq!(raw(body).0, 400, "{}", String::from_utf8_lossy(body));
    }
    let (_, image) = digit(TempDir::new().unwrap().path());
    let with = |more: Value| {
        let mut body = json!({"model": "digits", "image": image});
        more.as_object().unwrap().iter().for_each(|(k, v)| body[k] = v.clone());
        server.post("/v1/classify", &body)
    };
    for (more, field) in [
        (json!({"steps": 0}), "steps"),
        (json!({"steps": 100_000}), "steps"),
        (json!({"steps": "ten"}), "steps"),
        (json!({"guidance": [1]}), "guidance"),
        (json!({"sampler": "best"}), "sampler"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"votes": 1000}), "votes"),
        (json!({"top": 9}), "top"),
        (json!({"stepps": 3}), "stepps"),
        (json!({"prompt": "x"}), "prompt"),
        (json!({"image": 3}), "image"),
        (json!({"image": "not base64!"}), "image"),
        (json!({"image": &image[..image.len() / 2]}), "image"),
        (json!({"image": null}), "image"),
    ] {
        assert_eq!(with(more.clone()).problem(), (422, "invalid_request".into(), field.into()), "{more}");
    }
    let unknown = with(json!({"model": "none"}));
    assert_eq!(unknown.problem(), (404, "invalid_request".into(), "model".into()));
    assert!(unknown.text().contains("digits, shakespeare"), "{}", unknown.text());
    assert_eq!(with(json!({"model": "shakespeare"})).problem().2, "model");
    let body = json!({"model": "shakespeare", "count": 64, "candidates": 64});
    assert_eq!(server.post("/v1/generate", &body).problem().2, "count");
    let body = json!({"model": "shakespeare", "count": 2, "stream": true});
    assert_eq!(server.post("/v1/generate", &body).problem().2, "count");
    assert_eq!(server.post("/v1/generate", &json!({"model": "shakespeare", "guidance": 3})).problem().2, "guidance");
    assert_eq!(server.get("/v1/classify").problem().0, 405);
    assert_eq!(server.get("/v1/none").problem().0, 404);
    assert_eq!(server.get("/static/../Cargo.toml").problem().0, 404);
}

#[test]
fn large_images_and_bodies_are_refused_unread() {
    let server = Server::start(&["embedded:digits"]);
    let classify = |image: String| server.post("/v1/classify", &json!({"model": "digits", "image": image}));
    // A header of a few bytes that claims a billion pixels.
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 30_000, 30_000);
    encoder.set_color(png::ColorType::Grayscale);
    drop(encoder.write_header().unwrap());
    let huge = classify(base64::encode(&bytes));
    assert_eq!(huge.problem().2, "image");
    assert!(huge.text().contains("pixels"), "{}", huge.text());
    let begun = Instant::now();
    let mut stream = connect(server.address);
    let head = format!("POST /v1/classify HTTP/1.1\r\nhost: {}\r\ncontent-length: 99999999999\r\n\r\n", server.address);
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(answer(stream).problem().0, 413);
    assert!(begun.elapsed() < Duration::from_secs(5));
    // Without a length, the limit is met while it is read.
    let mut stream = connect(server.address);
    let head = format!("POST /v1/classify HTTP/1.1\r\nhost: {}\r\ntransfer-encoding: chunked\r\n\r\n", server.address);
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = [b"100000\r\n".to_vec(), vec![b' '; 1 << 20], b"\r\n".to_vec()].concat();
    for _ in 0..17 {
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    assert_eq!(answer(stream).problem().0, 413);
}

#[test]
fn only_its_own_page_and_name_reach_it() {
    let server =
        Server::start(&["embedded:digits", "--allow-origin", "https://friend.example", "--allow-host", "box.example"]);
    let (_, image) = digit(TempDir::new().unwrap().path());
    let body = json!({"model": "digits", "image": image}).to_string();
    let post = |headers: &[(&str, &str)]| ask(server.address, "POST", "/v1/classify", headers, body.as_bytes());
    let port = server.address.port();
    for host in ["localhost", "127.0.0.1", "[::1]", "box.example", "LOCALHOST"] {
        assert_eq!(post(&[("host", &format!("{host}:{port}"))]).status, 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "", "a b"] {
        let refused = ask(server.address, "GET", "/v1/models", &[("host", host)], b"");
        assert_eq!(refused.status, 403, "{host}");
    }
    let own = format!("http://{}", server.address);
    assert_eq!(post(&[("origin", &own)]).status, 200);
    for origin in ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1"] {
        let refused = post(&[("origin", origin)]);
        assert_eq!(refused.problem().1, "forbidden", "{origin}");
        assert_eq!(refused.header("access-control-allow-origin"), None);
    }
    let friend = post(&[("origin", "https://friend.example")]);
    assert_eq!(
        (friend.status, friend.header("access-control-allow-origin").as_deref()),
        (200, Some("https://friend.example"))
    );
    let preflight = [("origin", "https://friend.example"), ("access-control-request-method", "POST")];
    assert_eq!(ask(server.address, "OPTIONS", "/v1/classify", &preflight, b"").status, 204);
    let named = post(&[("x-request-id", "my-request.7")]);
    assert_eq!(named.header("x-request-id").as_deref(), Some("my-request.7"));
    assert!(post(&[("x-request-id", "a b")]).header("x-request-id").unwrap().starts_with("q-"));
    assert!(server.log().contains("my-request.7") && server.log().contains("POST /v1/classify 200"));
}

#[test]
fn a_key_is_asked_for_everywhere_but_for_the_page() {
    let server = Server::start(&["embedded:digits", "--api-key", "opensesame", "--log", "json"]);
    assert_eq!((server.get("/").status, server.get("/health").status), (200, 200));
    for path in ["/v1/models", "/metrics", "/openapi.json", "/v1/runs", "/v1/none"] {
        assert_eq!(server.get(path).problem(), (401, "unauthorized".into(), String::new()), "{path}");
    }
    let with = |key: &str| ask(server.address, "GET", "/v1/models", &[("authorization", key)], b"").status;
    assert_eq!(with("Bearer opensesame"), 200);
    for wrong in ["Bearer opensesam", "Bearer opensesame2", "opensesame", "Basic opensesame", "Bearer "] {
        assert_eq!(with(wrong), 401, "{wrong}");
    }
    let line = server.log().lines().last().unwrap().to_string();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["status"], &line["path"]), (&json!(401), &json!("/v1/models")));
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let server = Server::start(&["embedded:shakespeare", "--queue", "2", "--max-batch", "1"]);
    let body = json!({"model": "shakespeare", "steps": 300, "stream": true});
    let open = || Events::open(server.address, "POST", "/v1/generate", &[], &body);
    let mut first = open();
    first.by_ref().take(2).count(); // it runs
    let waiting = [open(), open()];
    let refused = server.post("/v1/generate", &body);
    assert_eq!(refused.problem(), (429, "overloaded".into(), String::new()));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(server.metric("tweedie_queue"), 2.0);
    // What was accepted is not lost.
    assert_eq!(first.last().unwrap().name, "done");
    for stream in waiting {
        assert_eq!(stream.last().unwrap().name, "done");
    }
    assert_eq!((server.metric("tweedie_queue"), server.metric("tweedie_jobs_done_total")), (0.0, 3.0));
}

/// Clients that send or read a byte a second hold up nobody, and those that send nothing are let go.
#[test]
fn slow_clients_hold_up_nobody() {
    let server = Server::start(&["embedded:shakespeare"]);
    let mut crawling: Vec<_> = (0..20).map(|_| connect(server.address)).collect();
    for stream in &mut crawling {
        stream.write_all(b"POST /v1/generate HT").unwrap();
    }
    let body = json!({"model": "shakespeare", "steps": 100, "stream": true, "candidates": 2}).to_string();
    let mut reader = connect(server.address);
    reader.write_all(&written(server.address, "POST", "/v1/generate", &[], body.as_bytes())).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        let quick = server.post("/v1/generate", &json!({"model": "shakespeare", "steps": 2}));
        assert_eq!(quick.status, 200);
        for stream in &mut crawling {
            let _ = stream.write_all(b"T");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    // A body that does not come: the rest of the server does not wait for it.
    let mut half = connect(server.address);
    let head = format!("POST /v1/generate HTTP/1.1\r\nhost: {}\r\ncontent-length: 100\r\n\r\n{{", server.address);
    half.write_all(head.as_bytes()).unwrap();
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(answer(half).problem().0, 408);
}
