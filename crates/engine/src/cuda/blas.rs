//! Matrix products by cuBLASLt, with what follows them fused in. For each shape the candidate algorithms are timed once
//! and the best is remembered: see `products.rs`.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::Mutex;

use cudarc::cublaslt::sys::{self as lt, cublasLtMatmulDescAttributes_t as Attr, cublasStatus_t as Status};

use super::products::Algorithm;
use super::{Buffer, Cuda, lock, log};
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, elements};

const WORKSPACE: usize = 64 << 20;
const CANDIDATES: usize = 16;

/// What the library overwrites.
const NO_RESULT: lt::cublasLtMatmulHeuristicResult_t = lt::cublasLtMatmulHeuristicResult_t {
    algo: lt::cublasLtMatmulAlgo_t { data: [0; 8] },
    workspaceSize: 0,
    state: Status::CUBLAS_STATUS_NOT_SUPPORTED,
    wavesCount: 0.0,
    reserved: [0; 4],
};

/// A row-major matrix on the device: `rows × cols` as stored, used transposed where `t`.
#[derive(Clone, Copy)]
pub(crate) struct Mat {
    pub ptr: u64,
    pub dtype: DType,
    pub stride: usize,
    pub t: bool,
}

impl Mat {
    /// A tensor as a matrix with rows of its last axis.
    pub fn of(x: &Tensor) -> Mat {
        Mat { ptr: x.ptr(), dtype: x.dtype(), stride: x.width(), t: false }
    }

    /// Used transposed.
    pub fn t(self) -> Mat {
        Mat { t: !self.t, ..self }
    }
}

/// Of many columns those in whole groups of eight: for other numbers the library takes a way of less than half the speed, so the
/// few that are left go by a product of their own.
pub(crate) fn even_columns(n: usize) -> usize {
    if n > 1024 { n / 8 * 8 } else { n }
}

/// What is done to the product before it is stored.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue {
    None,
    /// Add a vector along each row.
    Bias(u64),
    /// Add a vector, store the sum at `aux` unless that is 0, apply the tanh form of GELU.
    BiasGelu {
        bias: u64,
        aux: u64,
    },
    /// Multiply by GELU's slope (tanh form) at `aux`.
    GeluGrad {
        aux: u64,
    },
    /// `c = aᵀ·b` where `a` holds output gradients: also the column sums of `a`, in the type of `c`.
    SumOfA {
        sums: u64,
    },
}

impl Epilogue {
    fn code(self) -> lt::cublasLtEpilogue_t {
        use lt::cublasLtEpilogue_t::*;
        match self {
            Epilogue::None => CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias(_) => CUBLASLT_EPILOGUE_BIAS,
            Epilogue::BiasGelu { aux: 0, .. } => CUBLASLT_EPILOGUE_GELU_BIAS,
            Epilogue::BiasGelu { .. } => CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::GeluGrad { .. } => CUBLASLT_EPILOGUE_DGELU,
            // cuBLAS is column-major: row-major `aᵀ·b` is its `B·A`, so our `a` is its B.
            Epilogue::SumOfA { .. } => CUBLASLT_EPILOGUE_BGRADB,
        }
    }

    /// (vector, auxiliary matrix).
    fn pointers(self) -> (u64, u64) {
        match self {
            Epilogue::None => (0, 0),
            Epilogue::Bias(b) => (b, 0),
            Epilogue::BiasGelu { bias, aux } => (bias, aux),
            Epilogue::GeluGrad { aux } => (0, aux),
            Epilogue::SumOfA { sums } => (sums, 0),
        }
    }
}

/// `c[m×n] = a[m×k]·b[k×n] (+ add)`, all row-major.
pub(crate) struct Gemm {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Mat,
    pub b: Mat,
    pub c: Mat,
    /// Address of a matrix laid out like `c` that is added to the product: `c` itself to accumulate, or a residual.
    pub add: Option<u64>,
    pub epilogue: Epilogue,
}

/// A product of `count` matrices each that lie evenly apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Batch {
    pub count: usize,
    /// Elements from one `a`, `b`, `c` to the next.
    pub apart: [usize; 3],
}

impl Batch {
    const ONE: Batch = Batch { count: 1, apart: [0; 3] };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    dims: [usize; 3],
    strides: [usize; 3],
    transposed: [bool; 2],
    input: DType,
    output: DType,
    epilogue: u32,
    add: bool,
    /// Three digits are enough.
    rough: bool,
    batch: Batch,
    /// Power of two that all addresses are multiples of.
    alignment: u32,
}

impl Key {
    fn text(&self) -> String {
        format!("{self:?}").replace(' ', "")
    }
}

/// Everything of a product but the addresses.
struct Plan {
    desc: lt::cublasLtMatmulDesc_t,
    a: lt::cublasLtMatrixLayout_t,
    b: lt::cublasLtMatrixLayout_t,
    c: lt::cublasLtMatrixLayout_t,
    algo: lt::cublasLtMatmulAlgo_t,
}

pub(super) struct Blas {
    handle: lt::cublasLtHandle_t,
    workspace: Buffer,
    /// `None`: the library has no algorithm for this.
    plans: Mutex<HashMap<Key, Option<Plan>>>,
}

// SAFETY: cuBLASLt handles and descriptors may be used from any thread; the plans that hold them sit behind a mutex.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

fn check(call: &'static str, rc: Status) -> Result<()> {
    if rc == Status::CUBLAS_STATUS_SUCCESS {
        Ok(())
    } else {
        Err(Error::Cuda { call, message: format!("{rc:?}"), sticky: false })
    }
}

/// `blas!(cublasLtCreate(&mut h))`: call and check.
macro_rules! blas {
    ($f:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: cuBLASLt call; arguments are live handles or point to locals of the documented type and size.
        check(stringify!($f), unsafe { lt::$f($($arg),*) })
    };
}

fn data_type(d: DType) -> Result<lt::cudaDataType_t> {
    match d {
        DType::F32 => Ok(lt::cudaDataType_t::CUDA_R_32F),
        DType::Bf16 => Ok(lt::cudaDataType_t::CUDA_R_16BF),
        DType::U32 => Err(Error::op("matmul", "integers have no matrix product")),
    }
}

fn set<T>(desc: lt::cublasLtMatmulDesc_t, attr: Attr, value: T) -> Result<()> {
    blas!(cublasLtMatmulDescSetAttribute(desc, attr, std::ptr::from_ref(&value).cast(), std::mem::size_of::<T>()))
}

impl Drop for Plan {
    fn drop(&mut self) {
        // Errors have no one to go to.
        let _ = blas!(cublasLtMatmulDescDestroy(self.desc));
        for layout in [self.a, self.b, self.c] {
            let _ = blas!(cublasLtMatrixLayoutDestroy(layout));
        }
    }
}

impl Plan {
    fn new(g: &Gemm, key: &Key) -> Result<Plan> {
        let f32_type = lt::cudaDataType_t::CUDA_R_32F;
        let mut desc = std::ptr::null_mut();
        let compute = match key.rough {
            true => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        blas!(cublasLtMatmulDescCreate(&mut desc, compute, f32_type))?;
        // Row-major c = a·b is column-major cᵀ = bᵀ·aᵀ: the operands swap, each stored as its own transpose.
        let op = |t: bool| t as i32; // cublasOperation_t: N = 0, T = 1
        set(desc, Attr::CUBLASLT_MATMUL_DESC_TRANSA, op(g.b.t))?;
        set(desc, Attr::CUBLASLT_MATMUL_DESC_TRANSB, op(g.a.t))?;
        set(desc, Attr::CUBLASLT_MATMUL_DESC_EPILOGUE, g.epilogue.code())?;
        if g.epilogue.pointers().1 != 0 {
            set(desc, Attr::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.dims[1] as i64)?;
        }
        let Batch { count, apart } = key.batch;
        let layout = |m: &Mat, rows: usize, cols: usize, apart: usize| -> Result<lt::cublasLtMatrixLayout_t> {
            let (rows, cols) = if m.t { (cols, rows) } else { (rows, cols) };
            let mut l = std::ptr::null_mut();
            blas!(cublasLtMatrixLayoutCreate(&mut l, data_type(m.dtype)?, cols as u64, rows as u64, m.stride as i64))?;
            if count > 1 {
                use lt::cublasLtMatrixLayoutAttribute_t as Layout;
                let n = i32::try_from(count).map_err(|_| Error::op("matmul", format!("{count} products at once")))?;
                let apart = apart as i64;
                let attr = Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
                blas!(cublasLtMatrixLayoutSetAttribute(l, attr, std::ptr::from_ref(&n).cast(), 4))?;
                let attr = Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                blas!(cublasLtMatrixLayoutSetAttribute(l, attr, std::ptr::from_ref(&apart).cast(), 8))?;
            }
            Ok(l)
        };
        Ok(Plan {
            desc,
            a: layout(&g.b, g.k, g.n, apart[1])?,
            b: layout(&g.a, g.m, g.k, apart[0])?,
            c: layout(&g.c, g.m, g.n, apart[2])?,
            algo: lt::cublasLtMatmulAlgo_t { data: [0; 8] },
        })
    }

    fn execute(&self, cuda: &Cuda, blas: &Blas, g: &Gemm, algo: &lt::cublasLtMatmulAlgo_t) -> Result<()> {
        let (vector, aux) = g.epilogue.pointers();
        if vector != 0 {
            set(self.desc, Attr::CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector)?;
        }
        if aux != 0 {
            set(self.desc, Attr::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux)?;
        }
        let (one, beta) = (1.0_f32, if g.add.is_some() { 1.0_f32 } else { 0.0 });
        blas!(cublasLtMatmul(
            blas.handle,
            self.desc,
            std::ptr::from_ref(&one).cast(),
            g.b.ptr as *const c_void,
            self.a,
            g.a.ptr as *const c_void,
            self.b,
            std::ptr::from_ref(&beta).cast(),
            g.add.unwrap_or(g.c.ptr) as *const c_void,
            self.c,
            g.c.ptr as *mut c_void,
            self.c,
            algo,
            blas.workspace.ptr() as *mut c_void,
            WORKSPACE,
            cuda.0.stream.cast(),
        ))
    }

    /// Whether the library takes this algorithm for the product, with the room that there is. One from a file may be anything.
    fn takes(&self, blas: &Blas, algorithm: &Algorithm) -> bool {
        let algo = lt::cublasLtMatmulAlgo_t { data: *algorithm };
        let mut found = NO_RESULT;
        let (a, b, c) = (self.a, self.b, self.c);
        blas!(cublasLtMatmulAlgoCheck(blas.handle, self.desc, a, b, c, c, &algo, &mut found)).is_ok()
            && found.state == Status::CUBLAS_STATUS_SUCCESS
            && found.workspaceSize <= WORKSPACE
    }

    fn candidates(&self, blas: &Blas, alignment: u32) -> Result<Vec<lt::cublasLtMatmulAlgo_t>> {
        let mut pref = std::ptr::null_mut();
        blas!(cublasLtMatmulPreferenceCreate(&mut pref))?;
        use lt::cublasLtMatmulPreferenceAttributes_t as Pref;
        let (attr, size) = (Pref::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE);
        blas!(cublasLtMatmulPreferenceSetAttribute(pref, attr, std::ptr::from_ref(&size).cast(), 8))?;
        for attr in [
            Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            blas!(cublasLtMatmulPreferenceSetAttribute(pref, attr, std::ptr::from_ref(&alignment).cast(), 4))?;
        }
        let mut found = [NO_RESULT; CANDIDATES];
        let mut n = 0;
        let rc = blas!(cublasLtMatmulAlgoGetHeuristic(
            blas.handle,
            self.desc,
            self.a,
            self.b,
            self.c,
            self.c,
            pref,
            CANDIDATES as i32,
            found.as_mut_ptr(),
            &mut n
        ));
        blas!(cublasLtMatmulPreferenceDestroy(pref))?;
        if rc.is_err() {
            return Ok(Vec::new()); // "not supported" is an answer, not a failure
        }
        let ok = |r: &&lt::cublasLtMatmulHeuristicResult_t| r.state == Status::CUBLAS_STATUS_SUCCESS;
        Ok(found[..n as usize].iter().filter(ok).map(|r| r.algo).collect())
    }
}

impl Blas {
    fn new(cuda: &Cuda) -> Result<Blas> {
        let mut handle = std::ptr::null_mut();
        blas!(cublasLtCreate(&mut handle))?;
        Ok(Blas {
            handle,
            // Outlives any graph that may be captured at the moment.
            workspace: cuda.alloc_in(cuda.0.main.clone(), WORKSPACE)?,
            plans: Mutex::default(),
        })
    }

    /// A plan with the fastest algorithm, or `None` where the library has none.
    fn plan(&self, cuda: &Cuda, g: &Gemm, key: &Key) -> Result<Option<Plan>> {
        let mut plan = Plan::new(g, key)?;
        let product = key.text();
        let known = lock(&cuda.0.products).find(&product).filter(|a| plan.takes(self, a));
        if let Some(data) = known {
            plan.algo.data = data;
            lock(&cuda.0.products).used(&product, data);
            return Ok(Some(plan));
        }
        let candidates = plan.candidates(self, key.alignment)?;
        let Some(&first) = candidates.first() else { return Ok(None) };
        plan.algo = first;
        if cuda.is_capturing() {
            lock(&cuda.0.products).used(&product, first.data);
            return Ok(Some(plan)); // nothing can be timed now; a run before the capture would have tuned it
        }
        // Time on scratch outputs: where the product is added to `c`, a repeated run would change the caller's data.
        let Batch { count, apart } = key.batch;
        let room = |shape: &[usize]| elements("matmul", shape);
        let out =
            cuda.alloc(room(&[count - 1, apart[2]])?.saturating_add(room(&[g.m, g.c.stride])?) * g.c.dtype.size())?;
        let vector = cuda.alloc(g.m.max(g.n) * 4)?;
        let aux = match g.epilogue {
            // Stored in the type of the product.
            Epilogue::BiasGelu { aux, .. } if aux != 0 => Some(cuda.alloc(room(&[g.m, g.n])? * g.c.dtype.size())?),
            _ => None,
        };
        let epilogue = match g.epilogue {
            Epilogue::BiasGelu { bias, aux: a } => {
                Epilogue::BiasGelu { bias, aux: aux.as_ref().map_or(a, Buffer::ptr) }
            }
            Epilogue::SumOfA { .. } => Epilogue::SumOfA { sums: vector.ptr() },
            e => e,
        };
        let trial = Gemm { c: Mat { ptr: out.ptr(), ..g.c }, epilogue, ..*g };
        let mut best = f32::INFINITY;
        for algo in candidates {
            match plan.execute(cuda, self, &trial, &algo) {
                Ok(()) => {}
                Err(e) if e.is_sticky() => return Err(e),
                Err(_) => continue,
            }
            let mut ms = f32::INFINITY;
            for _ in 0..3 {
                ms = ms.min(cuda.time(|| plan.execute(cuda, self, &trial, &algo))?);
            }
            if ms < best {
                best = ms;
                plan.algo = algo;
            }
        }
        let mut products = lock(&cuda.0.products);
        if best.is_finite() {
            products.timed(&product, plan.algo.data);
        }
        products.used(&product, plan.algo.data);
        drop(products);
        Ok(Some(plan))
    }
}

impl Cuda {
    /// Run a product. `false`: cuBLASLt has no algorithm for it (odd sizes with a fused epilogue, say), nothing was done.
    pub(crate) fn try_gemm(&self, g: &Gemm) -> Result<bool> {
        self.product(g, false, Batch::ONE)
    }

    /// `rough`: operands of f32 may be cut to TF32's eleven bits.
    fn product(&self, g: &Gemm, rough: bool, batch: Batch) -> Result<bool> {
        self.bind()?;
        let blas = match self.0.blas.get() {
            Some(b) => b,
            None => {
                let made = Blas::new(self)?;
                self.0.blas.get_or_init(|| made)
            }
        };
        let apart = [(&g.a, batch.apart[0]), (&g.b, batch.apart[1]), (&g.c, batch.apart[2])];
        let apart = apart.iter().fold(0, |all, (m, apart)| all | (apart * m.dtype.size()) as u64);
        let key = Key {
            dims: [g.m, g.n, g.k],
            strides: [g.a.stride, g.b.stride, g.c.stride],
            transposed: [g.a.t, g.b.t],
            input: g.a.dtype,
            output: g.c.dtype,
            epilogue: g.epilogue.code() as u32,
            add: g.add.is_some(),
            rough,
            batch,
            alignment: 1 << (g.a.ptr | g.b.ptr | g.c.ptr | g.add.unwrap_or(0) | apart).trailing_zeros().min(8),
        };
        let mut plans = lock(&blas.plans);
        if !plans.contains_key(&key) {
            let plan = blas.plan(self, g, &key)?;
            plans.insert(key.clone(), plan);
        }
        match plans.get(&key) {
            Some(Some(plan)) => {
                let name = || {
                    let t = |m: &Mat| if m.t { "ᵀ" } else { "" };
                    let times = if batch.count > 1 { format!("{} × ", batch.count) } else { String::new() };
                    format!("product {times}{}×{}×{} a{}·b{} → {:?}", g.m, g.n, g.k, t(&g.a), t(&g.b), g.c.dtype)
                };
                let (size, block) = ([g.m, g.n, g.k], batch.count);
                let (device, captured) = (self.info().ordinal, self.is_capturing());
                let entry = log::LaunchRecord { name: log::PRODUCT, size, block, shared: 0, device, captured };
                self.queue_as(entry, name, || plan.execute(self, blas, g, &plan.algo)).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Make the plans of these products anew when they are next used.
    pub(super) fn forget_plans(&self, products: &HashSet<String>) {
        if let Some(blas) = self.0.blas.get().filter(|_| !products.is_empty()) {
            lock(&blas.plans).retain(|key, _| !products.contains(&key.text()));
        }
    }

    /// Run a product that needs no fused epilogue; every size is supported.
    pub(crate) fn gemm(&self, g: &Gemm) -> Result<()> {
        self.gemm_to(g, false, Batch::ONE)
    }

    /// As [`Cuda::gemm`], for a batch of one or more.
    pub(crate) fn batched_gemm(&self, g: &Gemm, batch: Batch) -> Result<()> {
        self.gemm_to(g, false, batch)
    }

    /// As [`Cuda::gemm`], of f32 to three digits: several times as fast.
    pub(crate) fn rough_gemm(&self, g: &Gemm) -> Result<()> {
        self.gemm_to(g, true, Batch::ONE)
    }

    fn gemm_to(&self, g: &Gemm, rough: bool, batch: Batch) -> Result<()> {
        if self.product(g, rough, batch)? {
            return Ok(());
        }
        Err(Error::op("matmul", format!("cuBLASLt has no algorithm for {}×{}×{} in {}", g.m, g.n, g.k, g.a.dtype)))
    }
}
