//! A session over several ranks: the first writes the folder, the others follow it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tweedie_engine::comm::Comm;

use super::snapshot::{restore, restore_from};
use crate::checkpoint::{self, Restored};
use crate::data::Fingerprint;
use crate::error::{Error, Result};
use crate::peers::Peers;
use crate::run_dir::Build;
use crate::settings;
use crate::train::Trainer;

/// The ranks of a group, or one alone.
pub(super) fn peers(comm: Option<Comm>) -> Peers {
    comm.map_or_else(Peers::default, Peers::new)
}

/// The path that the first rank has: names of new folders are chosen by what lies there, which changes.
pub(super) fn path_of_first(peers: &Peers, path: &Path) -> Result<PathBuf> {
    let all = peers.tell(&path.display().to_string())?;
    Ok(if peers.is_first() { path.to_path_buf() } else { all.into_iter().next().unwrap_or_default().into() })
}

/// Ranks of other settings, data or builds would train something that none of them was asked for.
pub(super) fn check_same(peers: &Peers, t: &Trainer, data: &Fingerprint) -> Result<()> {
    if !peers.are_several() {
        return Ok(());
    }
    let build = Build::this();
    let mut facts = vec![
        ("the program's version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
        (
            "the program's build".into(),
            format!("{} {} {} {}", build.commit, build.rustc, build.profile, build.features),
        ),
    ];
    facts.extend(settings::flat(&t.config)?);
    let json = serde_json::to_string(data).map_err(|e| Error::Input(format!("the fingerprint of the data: {e}")))?;
    facts.push(("data".into(), json));
    if let Some(tokenizer) = &t.trained.tokenizer {
        facts.push(("the tokenizer's checksum".into(), crc32c::crc32c(tokenizer.to_json().as_bytes()).to_string()));
    }
    peers.check_same(&facts)
}

/// A checkpoint as ranks tell each other of it.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Chosen {
    /// Name of its folder.
    name: Option<String>,
    /// Checksum of its `state.json`.
    state: Option<u32>,
}

impl Chosen {
    fn of(path: Option<&Path>) -> Chosen {
        let name = path.and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        let state = path.and_then(|p| std::fs::read(p.join("state.json")).ok()).map(|b| crc32c::crc32c(&b));
        Chosen { name, state }
    }
}

/// Put all ranks where the newest good checkpoint of the first one left off.
pub(super) fn restore_newest(peers: &Peers, t: &mut Trainer, checkpoints: &Path) -> Result<Restored> {
    let first = match peers.is_first() {
        true => checkpoint::restore_newest(checkpoints, |path, s| restore_from(t, path, s)),
        false => Ok(Restored::default()),
    };
    let mut restored = peers.agree(first)?;
    let of_first = peers.tell(&Chosen::of(restored.path.as_deref()))?.into_iter().next().unwrap_or_default();
    let followed = match (&of_first.name, peers.is_first()) {
        (Some(name), false) => follow(t, &checkpoints.join(name), &of_first),
        _ => Ok(()),
    };
    peers.agree(followed)?;
    if let (Some(name), false) = (of_first.name, peers.is_first()) {
        restored.path = Some(checkpoints.join(name));
    }
    Ok(restored)
}

/// Restore the checkpoint that the first rank has.
fn follow(t: &mut Trainer, path: &Path, of_first: &Chosen) -> Result<()> {
    if Chosen::of(Some(path)) != *of_first {
        let shown = path.display();
        let what =
            if path.exists() { "is another here than at rank 0" } else { "is not here, and rank 0 goes on from it" };
        return Err(Error::Input(format!("{shown} {what}: every rank needs the same folder of the run")));
    }
    restore(t, path)
}
