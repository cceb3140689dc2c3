//! From the start of a server to its end.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::client::Events;
use super::{Server, digit, train};

#[test]
fn sigterm_ends_open_streams_within_three_seconds() {
    let mut server = Server::start(&["embedded:shakespeare"]);
    let body = json!({"model": "shakespeare", "steps": 1000, "stream": true, "candidates": 4});
    let open = || Events::open(server.address, "POST", "/v1/generate", &[], &body);
    let mut streams = [open(), open()];
    streams.iter_mut().for_each(|s| assert_eq!(s.next().unwrap().name, "start"));
    let short = json!({"model": "shakespeare", "steps": 1, "stream": true});
    let short = Events::open(server.address, "POST", "/v1/generate", &[], &short);
    server.terminate();
    let (code, took) = server.wait();
    assert!(code == Some(0) && took < Duration::from_secs(3), "{code:?} {took:?}\n{}", server.log());
    for stream in streams {
        let end = stream.last().unwrap();
        assert_eq!((end.name.as_str(), &end.data["error"]["type"]), ("error", &json!("unavailable")));
    }
    let end = short.last().map(|e| e.name);
    assert!(matches!(end.as_deref(), None | Some("done" | "error")), "{end:?}");
}

#[test]
fn an_idle_server_ends_at_once() {
    let mut server = Server::start(&["embedded:digits"]);
    let _idle = super::client::connect(server.address);
    server.terminate();
    let (code, took) = server.wait();
    assert!(code == Some(0) && took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_run_is_loaded_served_reloaded_and_unloaded() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("runs");
    let run = folder.join("mine");
    assert!(train(&run, &["--set", "train.keep=9"]).status().unwrap().success());
    let server = Server::start(&["embedded:digits", "--runs", folder.to_str().unwrap()]);
    let loaded = server.post("/v1/models", &json!({"run": "mine"}));
    assert_eq!((loaded.status, &loaded.json()["name"]), (201, &json!("mine")), "{}", loaded.text());
    let step = loaded.json()["step"].as_u64().unwrap();
    assert_eq!(server.post("/v1/models", &json!({"run": "mine"})).status, 409);
    for wrong in ["none", "../runs/mine", "/etc", "", "."] {
        assert_eq!(server.post("/v1/models", &json!({"run": wrong})).status, 404, "{wrong}");
    }
    assert_eq!(server.get("/v1/runs").json()["runs"][0]["model"], "mine");
    let (_, image) = digit(dir.path());
    let body = json!({"model": "mine", "image": image, "stream": true});
    let first: Vec<_> = Events::open(server.address, "POST", "/v1/classify", &[], &body).collect();
    assert_eq!(first.last().unwrap().name, "done");
    // It is trained on: the server takes the new checkpoint by itself.
    let mut more = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    more.args(["--threads", "1", "--quiet", "train", "--device", "cpu", "--set", "train.epochs=4", "--resume"])
        .arg(&run);
    assert!(more.output().unwrap().status.success());
    let begun = Instant::now();
    let now = || {
        let models = server.get("/v1/models").json()["models"].clone();
        models.as_array().unwrap().iter().find(|m| m["name"] == "mine").unwrap()["step"].as_u64().unwrap()
    };
    while now() == step {
        assert!(begun.elapsed() < Duration::from_secs(20), "no reload\n{}", server.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.post("/v1/classify", &json!({"model": "mine", "image": image})).status, 200);
    let delete =
        |name: &str| super::client::ask(server.address, "DELETE", &format!("/v1/models/{name}"), &[], b"").status;
    assert_eq!([delete("mine"), delete("mine"), delete("digits")], [204, 404, 409]);
    assert_eq!(server.post("/v1/classify", &json!({"model": "mine", "image": image})).status, 404);
}

#[test]
fn a_wrong_start_says_what_to_do() {
    let refused = |args: &[&str], words: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_tweedie")).arg("serve").args(args).output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && err.contains(words), "{args:?}\n{err}");
    };
    refused(&["--host", "0.0.0.0"], "--api-key");
    refused(&["--host", "::", "--api-key", "short"], "at least 8 characters");
    refused(&["--api-key-file", "/none/key"], "/none/key");
    refused(&["--port", "0", "--device", "cpu", "runs/none"], "runs/none");
    refused(&["--port", "0", "--device", "cpu", "embedded:none"], "digits");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&["--port", &port], "cannot be listened at");
}
