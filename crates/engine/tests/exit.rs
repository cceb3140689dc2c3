//! A program may end while kernels are compiled on other threads.

use std::process::Command;
use std::time::Duration;

use tweedie_engine::cuda::{compile, kernel_files, libraries};

const CHILD: &str = "TWEEDIE_TEST_ENDS_EARLY";

/// NVRTC must not be torn down under a thread that is in it, which ends in a segmentation fault.
#[test]
fn a_program_may_end_while_kernels_are_compiled() {
    if let Err(why) = &libraries().nvrtc {
        assert!(std::env::var_os("TWEEDIE_REQUIRE_NVRTC").is_none(), "TWEEDIE_REQUIRE_NVRTC is set, but {why}");
        return eprintln!("skipped: {why}");
    }
    if std::env::var_os(CHILD).is_some() {
        let files = kernel_files();
        compile(&files[0], "sm_90").unwrap();
        for file in files.into_iter().take(3) {
            std::thread::spawn(move || compile(&file, "sm_90"));
        }
        std::thread::sleep(Duration::from_millis(std::env::var(CHILD).unwrap().parse().unwrap()));
        std::process::exit(0);
    }
    let this = std::env::current_exe().unwrap();
    for wait in ["10", "100"] {
        let child = Command::new(&this)
            .args(["--exact", "a_program_may_end_while_kernels_are_compiled"])
            .env(CHILD, wait)
            .output();
        let ended = child.unwrap();
        assert!(ended.status.success(), "{}", ended.status);
    }
}
