//! Runs that are served and trained at the same time: a new best checkpoint is noticed here and loaded by the engine.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tweedie::checkpoint;
use tweedie::run_dir::RunDir;

use crate::app::App;
use crate::engine::Command;
use crate::model::Described;

/// Between looks.
const EVERY: Duration = Duration::from_secs(2);

/// Look after the runs for as long as the server lives.
pub fn watch(app: &Weak<App>) {
    let mut seen: HashMap<String, SystemTime> = HashMap::new();
    while let Some(app) = app.upgrade() {
        for model in app.models.all().iter().filter(|m| !m.origin.embedded) {
            let Some(changed) = changed(&model.origin.path) else { continue };
            if seen.insert(model.name.clone(), changed) != Some(changed) && is_behind(model) {
                let _ = app.engine.send(Command::Reload(model.name.clone()));
            }
        }
        drop(app);
        std::thread::sleep(EVERY);
    }
}

/// When checkpoints came or went; none for a model that is one checkpoint.
fn changed(path: &Path) -> Option<SystemTime> {
    let folder = RunDir::is_run(path).then(|| path.join("checkpoints"))?;
    std::fs::metadata(folder).ok()?.modified().ok()
}

/// Whether the run has another checkpoint to offer than the one that is loaded.
fn is_behind(model: &Arc<Described>) -> bool {
    let folder = model.origin.path.join("checkpoints");
    let best = checkpoint::best(&folder).ok().flatten();
    let best = best.or_else(|| checkpoint::latest(&folder).ok()?.path);
    best.is_some_and(|path| path.file_name() != model.checkpoint.file_name())
}
