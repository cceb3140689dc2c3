//! The target of crates/fuzz that `TWEEDIE_FUZZ_TARGET` names, under libFuzzer.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tweedie_fuzz::{Scratch, TARGETS, Target};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("TWEEDIE_FUZZ_TARGET").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
        eprintln!("error: TWEEDIE_FUZZ_TARGET is '{name}'; it must be one of {}", names.join(", "));
        std::process::exit(2)
    })
});

thread_local! {
    static SCRATCH: Scratch = Scratch::new().unwrap_or_else(|e| {
        eprintln!("error: no folder for the files of the attack: {e}");
        std::process::exit(2)
    });
}

fuzz_target!(|bytes: &[u8]| {
    SCRATCH.with(|scratch| (TARGET.run)(scratch, bytes));
});
