//! The runs of a folder: listed, shown, compared, followed while they are trained.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::Events;
use super::{Server, train};

#[test]
fn runs_are_listed_compared_and_followed() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("runs");
    let server = Server::start(&["embedded:digits", "--runs", folder.to_str().unwrap()]);
    let none = server.get("/v1/runs").json();
    assert!(none["runs"] == json!([]) && none["hint"].as_str().unwrap().starts_with("tweedie train"), "{none}");
    assert!(train(&folder.join("a"), &[]).status().unwrap().success());
    let mut training =
        train(&folder.join("deep/b"), &["--set", "train.epochs=400", "--set", "train.lr=0.002"]).spawn().unwrap();
    let status = |name: &str| {
        let all = server.get("/v1/runs").json()["runs"].clone();
        all.as_array().unwrap().iter().find(|r| r["name"] == name).map(|r| r["status"].clone())
    };
    let mut tries = 0;
    while status("deep/b") != Some(json!("training")) {
        tries += 1;
        assert!(tries < 100, "{}", server.get("/v1/runs").text());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(status("a"), Some(json!("finished")));
    // Rows come while they are written.
    let path = "/v1/runs/deep%2Fb/metrics?from=2";
    let mut rows = Events::open(server.address, "GET", path, &[], &Value::Null);
    let some: Vec<_> = rows.by_ref().take(3).collect();
    assert_eq!(some.iter().map(|e| e.id).collect::<Vec<_>>(), [Some(2), Some(3), Some(4)]);
    assert!(some.iter().all(|e| e.name == "row" && e.data["event"].is_string()), "{some:?}");
    training.kill().unwrap();
    training.wait().unwrap();
    assert_eq!(rows.last().unwrap().name, "end");
    let shown = server.get("/v1/runs/a").json();
    assert_eq!(shown["values"]["train.epochs"], "1", "{}", shown["values"]);
    assert!(shown["settings"].as_str().unwrap().contains("[train]"));
    assert!(!shown["metrics"].as_array().unwrap().is_empty() && !shown["checkpoints"].as_array().unwrap().is_empty());
    let compared = server.get("/v1/runs/compare?names=a,deep%2Fb").json();
    let keys: Vec<&str> = compared["settings"].as_array().unwrap().iter().filter_map(|s| s["key"].as_str()).collect();
    assert!(keys.contains(&"train.lr") && keys.contains(&"train.epochs") && !keys.contains(&"train.batch"), "{keys:?}");
    for wrong in [
        "/v1/runs/none",
        "/v1/runs/..%2Fa",
        "/v1/runs/%2Fetc",
        "/v1/runs/none/metrics",
        "/v1/runs/compare?names=a,none",
    ] {
        assert_eq!(server.get(wrong).status, 404, "{wrong}");
    }
    assert_eq!(server.get("/v1/runs/compare?names=a").problem().2, "names");
}
