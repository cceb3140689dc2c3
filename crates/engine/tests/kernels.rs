//! Every kernel file compiles for Ampere and Hopper. Needs libnvrtc but no GPU: `pip install nvidia-cuda-nvrtc`.

use rayon::prelude::*;
use tweedie_engine::cuda;

#[test]
fn every_kernel_compiles_for_sm_80_and_sm_90a() {
    if let Err(why) = &cuda::libraries().nvrtc {
        assert!(std::env::var_os("TWEEDIE_REQUIRE_NVRTC").is_none(), "TWEEDIE_REQUIRE_NVRTC is set, but {why}");
        eprintln!("skipped: {why}");
        return;
    }
    let files = cuda::kernel_files();
    assert!(files.iter().any(|f| f.name() == "norm.cu"), "the list of kernel files has lost one that must be there");
    files.par_iter().for_each(|file| {
        for arch in ["sm_80", "sm_90a"] {
            let cubin = cuda::compile(file, arch).unwrap_or_else(|e| panic!("variant {}: {e}", file.variant));
            assert!(cubin.starts_with(b"\x7fELF"), "{} for {arch}: not a binary", file.name());
        }
    });
}

/// A chip that no compiler knows: the compiler's own words come back, not a panic.
#[test]
fn an_unknown_architecture_is_an_error_with_the_log() {
    if cuda::libraries().nvrtc.is_ok() {
        let error = cuda::compile(&cuda::kernel_files()[0], "sm_1").unwrap_err().to_string();
        assert!(error.contains("sm_1") && error.contains("gpu-architecture"), "{error}");
    }
}
