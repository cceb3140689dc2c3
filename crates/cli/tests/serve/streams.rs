//! Streams: read again, stopped, left, changed, late.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Server;
use super::client::{Events, ask};

/// A text that takes a while.
fn long(steps: usize) -> Value {
    json!({"model": "shakespeare", "steps": steps, "stream": true, "candidates": 4})
}

fn open(server: &Server, body: &Value) -> (Events, String) {
    let mut events = Events::open(server.address, "POST", "/v1/generate", &[], body);
    let start = events.next().unwrap();
    assert_eq!(start.name, "start", "{start:?}");
    let id = start.data["id"].as_str().unwrap().to_string();
    (events, id)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    begun.elapsed()
}

#[test]
fn a_stream_is_read_again_after_a_cut() {
    let server = Server::start(&["embedded:shakespeare"]);
    let whole: Vec<_> = Events::open(server.address, "POST", "/v1/generate", &[], &long(30)).collect();
    let (mut events, id) = open(&server, &long(30));
    let seen: Vec<_> = events.by_ref().take(5).collect();
    events.cut();
    let path = format!("/v1/streams/{id}");
    let last = seen.last().unwrap().id.unwrap();
    let rest = Events::open(server.address, "GET", &path, &[("last-event-id", &last.to_string())], &Value::Null);
    let rest: Vec<_> = rest.collect();
    assert_eq!(rest[0].id, Some(last + 1));
    let done = rest.last().unwrap();
    assert_eq!((done.name.as_str(), &done.data["text"]), ("done", &whole.last().unwrap().data["text"]));
    // And again as a whole, by two at a time, after the end.
    for _ in 0..2 {
        let again: Vec<_> = Events::open(server.address, "GET", &format!("{path}?from=0"), &[], &Value::Null).collect();
        assert_eq!(again.len(), 32);
        assert!(again.iter().enumerate().all(|(i, e)| e.id == Some(i as u64)));
    }
    assert_eq!(server.get("/v1/streams/r-none").problem(), (404, "invalid_request".into(), String::new()));
    assert_eq!(server.get(&format!("{path}?from=x")).problem().0, 400);
}

#[test]
fn what_is_stopped_or_left_frees_its_place() {
    let server = Server::start(&["embedded:shakespeare"]);
    let (mut events, id) = open(&server, &long(1000));
    events.next().unwrap();
    until("a stream", || server.metric("tweedie_rows") > 0.0);
    assert_eq!(ask(server.address, "DELETE", &format!("/v1/streams/{id}"), &[], b"").status, 204);
    let end = events.last().unwrap();
    assert_eq!((end.name.as_str(), &end.data["error"]["type"]), ("error", &json!("cancelled")));
    until("the place of a stopped stream", || server.metric("tweedie_rows") == 0.0);
    // One whose client leaves goes on for two seconds, for it may come again.
    let (mut events, _) = open(&server, &long(1000));
    events.next().unwrap();
    until("another stream", || server.metric("tweedie_rows") > 0.0);
    events.cut();
    let after = until("the place of a client that left", || server.metric("tweedie_rows") == 0.0);
    assert!(after > Duration::from_millis(1000), "{after:?}");
    // A plain request at once.
    let mut body = long(1000);
    body["stream"] = false.into();
    let stream = {
        use std::io::Write;
        let mut stream = super::client::connect(server.address);
        let bytes = super::client::written(server.address, "POST", "/v1/generate", &[], body.to_string().as_bytes());
        stream.write_all(&bytes).unwrap();
        stream
    };
    until("a plain request", || server.metric("tweedie_rows") > 0.0);
    drop(stream);
    until("the place of a plain request", || server.metric("tweedie_rows") == 0.0);
}

#[test]
fn tokens_are_fixed_while_a_stream_runs() {
    let server = Server::start(&["embedded:shakespeare"]);
    let mut body = long(200);
    body["candidates"] = 1.into();
    let (mut events, id) = open(&server, &body);
    events.next().unwrap();
    let path = format!("/v1/streams/{id}");
    let patch = |body: Value| ask(server.address, "PATCH", &path, &[], body.to_string().as_bytes());
    let changed = patch(json!({"pin": {"3": "Q", "4": "Z"}}));
    assert_eq!(changed.status, 200, "{}", changed.text());
    let step = changed.json()["step"].as_u64().unwrap();
    assert_eq!(patch(json!({"pin": {"4": null}})).status, 200);
    assert_eq!(patch(json!({"pin": {"3": "QZ"}})).problem().2, "pin.3");
    assert_eq!(patch(json!({})).problem().2, "pin");
    let all: Vec<_> = events.collect();
    let later = all.iter().filter(|e| e.name == "step" && e.data["step"].as_u64() > Some(step + 1));
    assert!(later.clone().count() > 0);
    for e in later {
        assert_eq!((&e.data["tokens"][3]["text"], &e.data["tokens"][3]["fixed"]), (&json!("Q"), &json!(true)));
    }
    assert_eq!(all.last().unwrap().data["tokens"][3]["text"], "Q");
    assert_eq!(patch(json!({"pin": {"3": "A"}})).problem(), (409, "invalid_request".into(), String::new()));
}

#[test]
fn a_deadline_ends_a_request_and_pings_keep_it_alive() {
    let server = Server::start(&["embedded:shakespeare"]);
    let mut body = long(1000);
    body["deadline_ms"] = 1500.into();
    let mut events = Events::open(server.address, "POST", "/v1/generate", &[], &body);
    let all: Vec<_> = events.by_ref().collect();
    assert_eq!(all.last().unwrap().data["error"]["type"], "deadline");
    assert!(events.pings >= 1);
    body["stream"] = false.into();
    body["deadline_ms"] = 1.into();
    assert_eq!(server.post("/v1/generate", &body).problem(), (504, "deadline".into(), String::new()));
}

/// Requests of two models go on side by side, and what one gets does not depend on the others.
#[test]
fn many_streams_are_worked_on_at_once() {
    let server = Server::start(&["embedded:shakespeare", "embedded:shapes"]);
    let body = |seed: u64| json!({"model": "shakespeare", "steps": 8, "seed": seed, "stream": true});
    let text = |events: Events| events.last().unwrap().data["text"].clone();
    let alone: Vec<Value> =
        (0..4).map(|s| text(Events::open(server.address, "POST", "/v1/generate", &[], &body(s)))).collect();
    let (slow, _) = open(&server, &long(400));
    let together: Vec<Events> =
        (0..4).map(|s| Events::open(server.address, "POST", "/v1/generate", &[], &body(s))).collect();
    let together: Vec<Value> = together.into_iter().map(text).collect();
    assert_eq!(alone, together);
    let object = json!({"size": "small", "color": "red", "shape": "cross", "x": 16, "y": 16});
    let caption = server.post("/v1/caption", &json!({"model": "shapes", "scene": {"objects": [object]}}));
    assert_eq!(caption.status, 200, "another model answers meanwhile");
    assert!(server.metric("tweedie_rows") >= 4.0, "the slow one still runs");
    slow.cut();
}
