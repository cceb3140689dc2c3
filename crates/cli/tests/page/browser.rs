//! A real Chromium, driven over its DevTools protocol: real mouse and keys, and what its console says.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

/// How long anything on the page may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A window with one page.
pub struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    session: Option<String>,
    next: u64,
    /// Errors and warnings of the console, exceptions, and resources that failed.
    pub troubles: Vec<String>,
    _profile: TempDir,
}

/// A point of the window, in CSS pixels.
pub type Point = (f64, f64);

impl Browser {
    /// None where there is no Chromium and none is required.
    pub fn start() -> Option<Browser> {
        let required = std::env::var("TWEEDIE_REQUIRE_CHROMIUM").is_ok_and(|v| v == "1");
        let Some(program) = find() else {
            assert!(!required, "TWEEDIE_REQUIRE_CHROMIUM is set and there is no chromium");
            eprintln!("there is no chromium: the page is not tested");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let mut c = Command::new(program);
        c.args(["--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-port=0"]);
        c.args(["--no-sandbox", "--disable-dev-shm-usage"]); // the tests run as root in containers with a small /dev/shm
        c.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let mut child = c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|l| l.strip_prefix("DevTools listening on ").map(String::from));
        let address = address.expect("chromium did not start");
        std::thread::spawn(move || lines.for_each(drop)); // a full pipe would stop it
        let host = address.trim_start_matches("ws://").split('/').next().unwrap().to_string();
        let stream = TcpStream::connect(&host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(address.as_str(), stream).unwrap();
        let mut browser = Browser { child, socket, session: None, next: 0, troubles: Vec::new(), _profile: profile };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}));
        let session = self.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        self.session = session["sessionId"].as_str().map(String::from);
        for domain in ["Page", "Runtime", "Log", "DOM"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.call("Page.bringToFront", json!({})); // a page in the background rests
    }

    /// One command of the protocol, and its answer; what the console says meanwhile is kept.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.socket.send(Message::text(message.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap_or_else(|e| panic!("{method}: {e}")) else { continue };
            let answer: Value = serde_json::from_str(&text).unwrap();
            if answer["id"] == self.next {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let p = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.troubles.push(p["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled") if p["type"] == "error" || p["type"] == "warning" => {
                self.troubles.push(p["args"].to_string());
            }
            Some("Log.entryAdded") if p["entry"]["level"] == "error" => self.troubles.push(p["entry"].to_string()),
            _ => {}
        }
    }

    /// The value of an expression, awaited.
    pub fn eval(&mut self, js: &str) -> Value {
        let params = json!({"expression": js, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{js}\n{}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// The text of an expression.
    pub fn text(&mut self, js: &str) -> String {
        self.eval(js).as_str().unwrap_or_default().to_string()
    }

    /// Until an expression is true.
    pub fn wait(&mut self, js: &str) {
        let until = Instant::now() + PATIENCE;
        while self.eval(&format!("Boolean({js})")) != true {
            let body = || "document.visibilityState + document.body.innerText.slice(0, 2000)";
            assert!(Instant::now() < until, "never true: {js}\n{}\n{:?}", self.text(body()), self.troubles);
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Another address, from scratch.
    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": "about:blank"})); // another fragment alone would not load anew
        self.call("Page.navigate", json!({"url": url}));
        self.wait("document.querySelector('[role=tab][aria-selected=true]')");
    }

    /// The window and what the system prefers.
    pub fn size(&mut self, width: u32, height: u32, dark: bool) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// A place within an element, from 0 to 1 along both axes, scrolled into view.
    pub fn within(&mut self, selector: &str, x: f64, y: f64) -> Point {
        let js = format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'center'}}); \
             const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()"
        );
        let b = self.eval(&js);
        let b = |i: usize| b[i].as_f64().unwrap();
        (b(0) + x * b(2), b(1) + y * b(3))
    }

    fn mouse(&mut self, kind: &str, (x, y): Point, buttons: u32) {
        let event = json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1});
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Presses at the first point, moves through the others, lets go.
    pub fn drag(&mut self, points: &[Point]) {
        self.mouse("mousePressed", points[0], 1);
        for p in &points[1..] {
            self.mouse("mouseMoved", *p, 1);
        }
        self.mouse("mouseReleased", points[points.len() - 1], 0);
    }

    pub fn click(&mut self, selector: &str) {
        self.wait(&format!("document.querySelector({selector:?})"));
        let at = self.within(selector, 0.5, 0.5);
        self.drag(&[at]);
    }

    /// One key, by the name that pages see.
    pub fn key(&mut self, key: &str) {
        let codes = [("ArrowLeft", 37), ("ArrowRight", 39), ("Home", 36), ("End", 35), ("Enter", 13), ("Escape", 27)];
        let code = codes.iter().find(|c| c.0 == key).map_or(key.chars().next().map_or(0, |c| c as u32), |c| c.1);
        let text = if key == "Enter" { "\r" } else { key };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if key.chars().count() == 1 || key == "Enter" {
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", event);
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code}));
    }

    /// Drops a file at a point, as from the desktop.
    pub fn drop_file(&mut self, (x, y): Point, file: &Path) {
        let data = json!({"items": [], "files": [file], "dragOperationsMask": 1});
        for kind in ["dragEnter", "dragOver", "drop"] {
            self.call("Input.dispatchDragEvent", json!({"type": kind, "x": x, "y": y, "data": data}));
        }
    }

    /// A picture of the window in `target/page`.
    pub fn screenshot(&mut self, name: &str) {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let bytes = base64::decode(answer["data"].as_str().unwrap()).unwrap();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../page");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }

    /// Nothing went wrong that the console tells of.
    pub fn is_quiet(&mut self) {
        self.eval("0"); // what was said until now has come
        assert!(self.troubles.is_empty(), "{:#?}", self.troubles);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).flat_map(|dir| names.map(|n| dir.join(n))).find(|p| p.is_file())
}
