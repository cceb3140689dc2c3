//! The page's pure functions, in the browser that runs them.

use super::browser::Browser;
use super::server::Server;

#[test]
fn pure_functions() {
    let Some(mut b) = Browser::start() else { return };
    let server = Server::start();
    b.open(&server.url);
    assert_eq!(b.eval(include_str!("modules.js")), serde_json::json!([]));
    b.is_quiet();
}
