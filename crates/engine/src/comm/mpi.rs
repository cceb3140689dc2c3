//! MPI, loaded at run time: a table of the few functions that are called, for each of the binary interfaces that libraries have.
//!
//! Open MPI's handles are addresses of its own symbols, MPICH's (and Intel's and Cray's) are 32-bit numbers, those of the standard
//! interface (`libmpi_abi`, MPI 5) are small constants. All are passed as integers of pointer size: a function that takes 32 bits
//! reads the lower half, on x86-64 and aarch64 alike, and one that writes 32 bits writes the lower half of what was zero.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::ranks::process_env;
use super::refused;
use crate::error::{Error, Result};
use crate::library::{Found, beside_programs, load, named_folders};

/// A communicator, type, operation or request.
type Handle = usize;
type Buffer = *mut c_void;

/// Constants of one binary interface.
struct Abi {
    world: Handle,
    float: Handle,
    byte: Handle,
    sum: Handle,
    errors_return: Handle,
    in_place: Buffer,
    ignore_status: Buffer,
    funneled: c_int,
}

/// Names of the library, by the interface that they stand for.
const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.40.dylib"];
const MPICH: &[&str] = &["libmpi.so.12", "libmpich.so.12", "libmpi.12.dylib"];
const STANDARD: &[&str] = &["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so"];

/// The functions, named as in MPI.
macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($arg),*) -> c_int,)* }

        impl Functions {
            fn of(library: &Library) -> std::result::Result<Functions, String> {
                Ok(Functions { $($name: {
                    // SAFETY: MPI's own function of this name, with the parameters that the standard gives it.
                    let found = unsafe { library.get(stringify!($name).as_bytes()) };
                    *found.map_err(|_| concat!("has no ", stringify!($name)))?
                },)* })
            }
        }
    };
}

functions! {
    MPI_Init_thread: fn(*mut c_int, *mut c_void, c_int, *mut c_int);
    MPI_Finalize: fn();
    MPI_Get_library_version: fn(*mut c_char, *mut c_int);
    MPI_Comm_rank: fn(Handle, *mut c_int);
    MPI_Comm_size: fn(Handle, *mut c_int);
    MPI_Comm_dup: fn(Handle, *mut Handle);
    MPI_Comm_set_errhandler: fn(Handle, Handle);
    MPI_Error_string: fn(c_int, *mut c_char, *mut c_int);
    MPI_Iallreduce: fn(Buffer, Buffer, c_int, Handle, Handle, Handle, *mut Handle);
    MPI_Ireduce_scatter_block: fn(Buffer, Buffer, c_int, Handle, Handle, Handle, *mut Handle);
    MPI_Iallgather: fn(Buffer, c_int, Handle, Buffer, c_int, Handle, Handle, *mut Handle);
    MPI_Ibcast: fn(Buffer, c_int, Handle, c_int, Handle, *mut Handle);
    MPI_Ibarrier: fn(Handle, *mut Handle);
    MPI_Test: fn(*mut Handle, *mut c_int, *mut c_void);
}

/// The library, loaded but not begun.
pub(super) struct Mpi {
    f: Functions,
    abi: Abi,
    pub found: Found,
    _library: Library,
}

// SAFETY: function pointers and constants; which thread calls is the worker's affair.
unsafe impl Send for Mpi {}

/// The MPI library that would be used, and its version.
pub fn find() -> std::result::Result<Found, String> {
    Mpi::load().map(|mpi| mpi.found)
}

/// Names in the order in which they are tried: first those of what started this process.
fn names(env: impl Fn(&str) -> Option<String>) -> Vec<&'static str> {
    let set = |name: &str| env(name).is_some();
    if set("OMPI_COMM_WORLD_RANK") || set("PMIX_RANK") {
        [OPEN_MPI, STANDARD, MPICH].concat()
    } else if set("PMI_RANK") || set("PMI_FD") {
        [MPICH, STANDARD, OPEN_MPI].concat()
    } else {
        [STANDARD, OPEN_MPI, MPICH].concat()
    }
}

/// Where the libraries of the program that started this one lie, if it is an MPI's: beside it.
fn beside_parent() -> Vec<PathBuf> {
    let parent = std::os::unix::process::parent_id();
    let exe = std::fs::read_link(format!("/proc/{parent}/exe")).unwrap_or_default();
    let starts = ["orte", "prte", "mpi", "hydra", "pmi"];
    let is_launcher = exe.file_name().is_some_and(|n| starts.iter().any(|s| n.to_string_lossy().starts_with(s)));
    let prefix = exe.parent().and_then(Path::parent).filter(|p| is_launcher && *p != Path::new("/usr"));
    prefix.map_or_else(Vec::new, |p| vec![p.join("lib"), p.join("lib64")])
}

/// Folders of usual installations.
fn folders() -> Vec<PathBuf> {
    let mut out = named_folders(&["OPAL_PREFIX", "MPI_HOME", "I_MPI_ROOT"]);
    let usual = ["x86_64-linux-gnu", "aarch64-linux-gnu"].map(|t| format!("/usr/lib/{t}"));
    out.extend(usual.map(PathBuf::from));
    out.extend(["/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib", "/usr/local/lib"].map(PathBuf::from));
    for prefix in beside_programs(&std::env::var_os("PATH").unwrap_or_default()) {
        if prefix.join("bin/mpirun").exists() {
            out.extend([prefix.join("lib"), prefix.join("lib64")]);
        }
    }
    out
}

impl Mpi {
    pub fn load() -> std::result::Result<Mpi, String> {
        let names = names(process_env);
        let (library, file) = load(&names, "MPI_Init_thread", "TWEEDIE_MPI_PATH", &beside_parent(), folders)?;
        let f = Functions::of(&library).map_err(|e| format!("{file} {e}: a library of MPI 3 or newer is needed"))?;
        let version = library_version(&f);
        let standard = file.contains("libmpi_abi");
        let abi = match &version {
            _ if standard => standard_abi(),
            v if v.starts_with("Open MPI") => open_mpi_abi(&library).map_err(|e| format!("{file} has no {e}"))?,
            v if ["MPICH", "Intel", "CRAY", "Cray", "MVAPICH"].iter().any(|m| v.contains(m)) => mpich_abi(),
            v => return Err(format!("{file} is '{v}': only Open MPI, MPICH and its kin, and libmpi_abi are known")),
        };
        Ok(Mpi { f, abi, found: Found { file, version }, _library: library })
    }

    /// MPI_Init_thread: this thread alone calls MPI from now on. Gives the rank and the number of ranks.
    pub fn init(&self) -> Result<(usize, usize)> {
        let (mut provided, mut rank, mut size) = (0, 0, 0);
        // SAFETY: no arguments are given to it, which MPI 2 and newer allow; called once per process.
        let rc = unsafe {
            (self.f.MPI_Init_thread)(std::ptr::null_mut(), std::ptr::null_mut(), self.abi.funneled, &mut provided)
        };
        self.check("MPI_Init_thread", rc)?;
        // SAFETY: MPI is begun; the handles are its own; ints are written to live locals.
        unsafe {
            self.check(
                "MPI_Comm_set_errhandler",
                (self.f.MPI_Comm_set_errhandler)(self.abi.world, self.abi.errors_return),
            )?;
            self.check("MPI_Comm_rank", (self.f.MPI_Comm_rank)(self.abi.world, &mut rank))?;
            self.check("MPI_Comm_size", (self.f.MPI_Comm_size)(self.abi.world, &mut size))?;
        }
        Ok((rank as usize, size as usize))
    }

    /// All ranks, as a group of their own beside [`Mpi::world`].
    pub fn duplicate(&self) -> Result<Group> {
        let mut group = 0;
        // SAFETY: MPI is begun; the handle is written to a live local.
        self.check("MPI_Comm_dup", unsafe { (self.f.MPI_Comm_dup)(self.abi.world, &mut group) })?;
        Ok(Group(group))
    }

    /// All ranks.
    pub fn world(&self) -> Group {
        Group(self.abi.world)
    }

    pub fn finalize(&self) -> Result<()> {
        // SAFETY: called once, after everything else, on the thread that began.
        self.check("MPI_Finalize", unsafe { (self.f.MPI_Finalize)() })
    }

    /// Sum `data` in place. The memory must stay where it is until the request is done; so for all that follow.
    pub fn all_reduce(&self, data: &mut [f32]) -> Result<Request> {
        let (count, a) = (count(data.len())?, &self.abi);
        self.begin("MPI_Iallreduce", |request| {
            // SAFETY: `data` has `count` values and outlives the request, as the caller promises.
            unsafe { (self.f.MPI_Iallreduce)(a.in_place, pointer(data), count, a.float, a.sum, a.world, request) }
        })
    }

    /// The sum of the own chunk of `data`, to `chunk`.
    pub fn reduce_scatter(&self, data: &mut [f32], chunk: &mut [f32]) -> Result<Request> {
        let (count, a) = (count(chunk.len())?, &self.abi);
        self.begin("MPI_Ireduce_scatter_block", |request| {
            // SAFETY: `data` holds a chunk of `count` for each rank; both outlive the request.
            unsafe {
                let (from, to) = (pointer(data), pointer(chunk));
                (self.f.MPI_Ireduce_scatter_block)(from, to, count, a.float, a.sum, a.world, request)
            }
        })
    }

    /// The chunks of all ranks, to `all`.
    pub fn all_gather(&self, chunk: &mut [f32], all: &mut [f32]) -> Result<Request> {
        self.gather(pointer(chunk), pointer(all), count(chunk.len())?, self.abi.float)
    }

    /// The bytes of all ranks, equally many of each.
    pub fn all_gather_bytes(&self, mine: &mut [u8], all: &mut [u8]) -> Result<Request> {
        self.gather(pointer(mine), pointer(all), count(mine.len())?, self.abi.byte)
    }

    fn gather(&self, from: Buffer, to: Buffer, n: c_int, kind: Handle) -> Result<Request> {
        self.begin("MPI_Iallgather", |request| {
            // SAFETY: `from` has `n` values, `to` as many for each rank; both outlive the request.
            unsafe { (self.f.MPI_Iallgather)(from, n, kind, to, n, kind, self.abi.world, request) }
        })
    }

    pub fn broadcast(&self, data: &mut [f32], root: usize) -> Result<Request> {
        let (count, a) = (count(data.len())?, &self.abi);
        self.begin("MPI_Ibcast", |request| {
            // SAFETY: `data` has `count` values and outlives the request.
            unsafe { (self.f.MPI_Ibcast)(pointer(data), count, a.float, root as c_int, a.world, request) }
        })
    }

    pub fn barrier(&self, group: &Group) -> Result<Request> {
        // SAFETY: the group is one of ours; the request is written to a live local.
        self.begin("MPI_Ibarrier", |request| unsafe { (self.f.MPI_Ibarrier)(group.0, request) })
    }

    fn begin(&self, call: &'static str, f: impl FnOnce(*mut Handle) -> c_int) -> Result<Request> {
        let mut request = 0;
        self.check(call, f(&mut request))?;
        Ok(Request(request))
    }

    /// Whether a request is done.
    pub fn test(&self, request: &mut Request) -> Result<bool> {
        let mut done = 0;
        // SAFETY: the request was made by this library and is not done yet.
        let rc = unsafe { (self.f.MPI_Test)(&mut request.0, &mut done, self.abi.ignore_status) };
        self.check("MPI_Test", rc)?;
        Ok(done != 0)
    }

    fn check(&self, call: &'static str, rc: c_int) -> Result<()> {
        if rc == 0 {
            return Ok(());
        }
        let (mut text, mut len) = ([0 as c_char; 1024], 0);
        // SAFETY: no library writes more than 512 characters.
        unsafe { (self.f.MPI_Error_string)(rc, text.as_mut_ptr(), &mut len) };
        Err(Error::comm(call, format!("{} ({})", words(&mut text), self.found.version)))
    }
}

/// A set of ranks.
pub(super) struct Group(Handle);

/// Something that MPI has begun.
pub(super) struct Request(Handle);

fn pointer<T>(data: &mut [T]) -> Buffer {
    data.as_mut_ptr().cast()
}

fn count(len: usize) -> Result<c_int> {
    let why = || refused(format!("MPI counts to 2³¹ − 1, and {len} values were given at once: use smaller ranges"));
    c_int::try_from(len).map_err(|_| why())
}

/// Text that a library wrote.
fn words(text: &mut [c_char]) -> String {
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    // SAFETY: it ends with a zero by now, if nowhere before.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().trim().to_string()
}

/// The library's name and version: "Open MPI 4.1.4", "MPICH 4.0.2".
fn library_version(f: &Functions) -> String {
    let (mut text, mut len) = (vec![0 as c_char; 8192 + 1], 0);
    // SAFETY: may be called before MPI is begun; no library writes more than 8192 characters.
    unsafe { (f.MPI_Get_library_version)(text.as_mut_ptr(), &mut len) };
    short_version(&words(&mut text))
}

/// The first words of what libraries say of themselves over many lines.
fn short_version(text: &str) -> String {
    // "Open MPI v4.1.4, package: Debian OpenMPI, …"; "MPICH Version:\t4.0.2\nMPICH Release date:\t…"
    let first = text.split([',', '\n']).next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().filter(|w| *w != "Version:").collect();
    words.join(" ").replace("Open MPI v", "Open MPI ")
}

fn open_mpi_abi(library: &Library) -> std::result::Result<Abi, &'static str> {
    let symbol = |name: &'static str| {
        // SAFETY: only the address of the symbol is taken.
        let found = unsafe { library.get::<*const ()>(name.as_bytes()) };
        found.map(|s| *s as Handle).map_err(|_| name)
    };
    Ok(Abi {
        world: symbol("ompi_mpi_comm_world")?,
        float: symbol("ompi_mpi_float")?,
        byte: symbol("ompi_mpi_byte")?,
        sum: symbol("ompi_mpi_op_sum")?,
        errors_return: symbol("ompi_mpi_errors_return")?,
        in_place: 1 as Buffer,
        ignore_status: std::ptr::null_mut(),
        funneled: 1,
    })
}

fn mpich_abi() -> Abi {
    Abi {
        world: 0x4400_0000,
        float: 0x4c00_040a,
        byte: 0x4c00_010d,
        sum: 0x5800_0003,
        errors_return: 0x5400_0001,
        in_place: usize::MAX as Buffer,
        ignore_status: 1 as Buffer,
        funneled: 1,
    }
}

fn standard_abi() -> Abi {
    Abi {
        world: 0x101,
        float: 0x210,
        byte: 0x247,
        sum: 0x21,
        errors_return: 0x143,
        in_place: 1 as Buffer,
        ignore_status: std::ptr::null_mut(),
        funneled: 1024,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_of_what_started_the_process_comes_first() {
        let first = |set: &'static [&'static str]| names(move |n| set.contains(&n).then(|| "1".into()))[0];
        assert_eq!(first(&["OMPI_COMM_WORLD_RANK", "PMIX_RANK"]), "libmpi.so.40");
        assert_eq!(first(&["PMI_RANK", "PMI_FD"]), "libmpi.so.12");
        assert_eq!(first(&[]), "libmpi_abi.so.1");
    }

    #[test]
    fn versions_are_told_in_a_few_words() {
        let open = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022";
        assert_eq!(short_version(open), "Open MPI 4.1.4");
        assert_eq!(short_version("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7"), "MPICH 4.0.2");
        assert_eq!(
            short_version("Intel(R) MPI Library 2021.9 for Linux* OS"),
            "Intel(R) MPI Library 2021.9 for Linux* OS"
        );
    }
}
