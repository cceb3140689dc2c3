//! NCCL, loaded at run time: a table of the few functions that are called.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::library::Found;

/// Results of calls that are told apart.
pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;

/// Sums.
pub(super) const SUM: c_int = 0;
/// Types of values.
pub(super) const UINT32: c_int = 3;
pub(super) const FLOAT32: c_int = 7;

/// The oldest version whose configuration has the fields of [`Config`]: major·10000 + minor·100 + patch.
const OLDEST: c_int = 21_800;

pub(super) type Communicator = *mut c_void;
type Stream = *mut c_void;

/// What all ranks of a communicator know it by.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub [u8; 128]);

/// `ncclConfig_t` of NCCL 2.18. Newer libraries take it by its size and version, and fill in what came after.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once and are asked for later.
    pub fn non_blocking() -> Config {
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST as u32,
            blocking: 0,
            cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// The functions, named as in NCCL.
macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) -> $out:ty;)*) => {
        #[allow(non_snake_case)]
        pub(super) struct Functions { $(pub $name: unsafe extern "C" fn($($arg),*) -> $out,)* }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, &'static str> {
                Ok(Functions { $($name: {
                    // SAFETY: NCCL's own function of this name, with the parameters that its header gives it.
                    let found = unsafe { library.get(stringify!($name).as_bytes()) };
                    *found.map_err(|_| stringify!($name))?
                },)* })
            }
        }
    };
}

functions! {
    ncclGetUniqueId: fn(*mut UniqueId) -> c_int;
    ncclCommInitRankConfig: fn(*mut Communicator, c_int, UniqueId, c_int, *mut Config) -> c_int;
    ncclCommGetAsyncError: fn(Communicator, *mut c_int) -> c_int;
    ncclCommFinalize: fn(Communicator) -> c_int;
    ncclCommDestroy: fn(Communicator) -> c_int;
    ncclCommAbort: fn(Communicator) -> c_int;
    ncclGetErrorString: fn(c_int) -> *const c_char;
    ncclGetLastError: fn(Communicator) -> *const c_char;
    ncclAllReduce: fn(u64, u64, usize, c_int, c_int, Communicator, Stream) -> c_int;
    ncclReduceScatter: fn(u64, u64, usize, c_int, c_int, Communicator, Stream) -> c_int;
    ncclAllGather: fn(u64, u64, usize, c_int, Communicator, Stream) -> c_int;
    ncclBroadcast: fn(u64, u64, usize, c_int, c_int, Communicator, Stream) -> c_int;
}

/// The library.
pub(super) struct Nccl {
    pub f: Functions,
    found: Found,
    _library: Library,
}

impl Nccl {
    /// Load it, once per process.
    pub fn load() -> Result<&'static Nccl, String> {
        static LOADED: OnceLock<Result<Nccl, String>> = OnceLock::new();
        LOADED.get_or_init(Nccl::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Nccl, String> {
        let (library, file) = crate::cuda::open_library(&["libnccl.so.2"], "ncclGetVersion")?;
        let mut version = 0;
        // SAFETY: NCCL's own function, which writes one int.
        let asked = unsafe {
            let ask: libloading::Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> =
                library.get(b"ncclGetVersion").map_err(|_| format!("{file} has no ncclGetVersion"))?;
            ask(&mut version)
        };
        if asked != SUCCESS || version < OLDEST {
            return Err(format!("{file} is NCCL {}; {} or newer is needed", dotted(version), dotted(OLDEST)));
        }
        let f = Functions::of(&library).map_err(|name| format!("{file} has no {name}"))?;
        Ok(Nccl { f, found: Found { file, version: dotted(version) }, _library: library })
    }

    /// "2.27.5".
    pub fn version(&self) -> &str {
        &self.found.version
    }

    /// What a result of a call on `comm` (or null) means.
    pub fn words(&self, comm: Communicator, rc: c_int) -> String {
        let text = |p: *const c_char| match p.is_null() {
            true => String::new(),
            // SAFETY: NCCL returns strings that end with a zero and live on.
            false => unsafe { CStr::from_ptr(p) }.to_string_lossy().trim().to_string(),
        };
        // SAFETY: both take any result and any live communicator or null.
        let (general, last) = unsafe { (text((self.f.ncclGetErrorString)(rc)), text((self.f.ncclGetLastError)(comm))) };
        if last.is_empty() { general } else { format!("{general} ({last})") }
    }
}

/// The NCCL library that would be used, and its version.
pub fn find() -> Result<Found, String> {
    Nccl::load().map(|nccl| nccl.found.clone())
}

fn dotted(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_layout_of_the_header() {
        assert_eq!((size_of::<Config>(), std::mem::offset_of!(Config, net_name)), (48, 32));
        assert_eq!(std::mem::offset_of!(Config, split_share), 40);
        assert_eq!((size_of::<UniqueId>(), dotted(OLDEST)), (128, "2.18.0".into()));
    }
}
