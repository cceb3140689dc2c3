//! Runs that a folder holds, for who passes the folder and means one of them.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use super::CONFIG;

/// Names that are told.
const NAMED: usize = 6;

/// Names of the runs directly in a folder, the newest first.
fn runs_inside(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let written = |p: &Path| fs::metadata(p.join(CONFIG)).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let is_run = |p: &Path| p.join(CONFIG).is_file();
    let mut runs: Vec<_> = entries.map(|e| e.path()).filter(|p| is_run(p)).map(|p| (written(&p), p)).collect();
    runs.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    runs.iter().filter_map(|(_, p)| Some(p.file_name()?.to_string_lossy().into_owned())).collect()
}

/// What is said of a folder that is no run and holds some; nothing where it holds none.
pub(super) fn told(folder: &Path) -> Option<String> {
    let runs = runs_inside(folder);
    let newest = folder.join(runs.first()?);
    let more = runs.len().saturating_sub(NAMED);
    let names = runs[..runs.len().min(NAMED)].join(", ");
    let names = if more > 0 { format!("{names} and {more} more") } else { names };
    Some(format!(
        "{} is not a run but a folder of runs, the newest first: {names}; pass one of them, such as {}",
        folder.display(),
        newest.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_inside_are_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(told(dir.path()), None);
        for n in 0..8 {
            let run = dir.path().join(format!("digits-{n}"));
            fs::create_dir(&run).unwrap();
            fs::write(run.join(CONFIG), "").unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000 + n);
            fs::File::options().write(true).open(run.join(CONFIG)).unwrap().set_modified(at).unwrap();
        }
        fs::create_dir(dir.path().join("other")).unwrap();
        let told = told(dir.path()).unwrap();
        assert!(told.contains("digits-7, digits-6, digits-5, digits-4, digits-3, digits-2 and 2 more"), "{told}");
        assert!(told.contains(&dir.path().join("digits-7").display().to_string()) && !told.contains("other"), "{told}");
    }
}
