//! How a server is started.

use std::net::IpAddr;
use std::path::PathBuf;

/// How requests are told of on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogForm {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object for programs.
    Json,
}

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    /// What requests call it.
    pub name: String,
    /// A run folder, a checkpoint, or `embedded:NAME`.
    pub path: PathBuf,
}

/// What a server is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The models.
    pub models: Vec<ModelSource>,
    /// Address to listen at.
    pub host: IpAddr,
    /// Port; 0: a free one.
    pub port: u16,
    /// auto, cpu, cuda or cuda:N.
    pub device: String,
    /// Folder of runs that the page lists.
    pub runs: PathBuf,
    /// What clients must know.
    pub api_key: Option<String>,
    /// Rows of a model that are worked on at once.
    pub max_batch: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// Steps that a request may ask for.
    pub max_steps: usize,
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a request.
    pub max_body: usize,
    /// Pages of other origins that may use the server; `*` for all.
    pub allow_origin: Vec<String>,
    /// Names besides loopback ones and the bound address under which the server may be called.
    pub allow_host: Vec<String>,
    /// Form of the log.
    pub log: LogForm,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            models: Vec::new(),
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            device: "auto".into(),
            runs: "runs".into(),
            api_key: None,
            max_batch: 64,
            queue: 256,
            max_steps: 1000,
            connections: 512,
            max_body: 16 << 20,
            allow_origin: Vec::new(),
            allow_host: Vec::new(),
            log: LogForm::Text,
        }
    }
}
