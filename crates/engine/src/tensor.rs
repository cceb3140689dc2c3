//! Tensors: shape, element type, and shared storage on one device. Always contiguous, row-major.

use std::fmt;
use std::sync::Arc;

use crate::cpu::pool::Buf;
use crate::cuda::Buffer;
use crate::device::Device;
use crate::error::{Error, Result, ensure};

/// Element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float: all CPU arithmetic, GPU master weights and debugging.
    F32,
    /// bfloat16: GPU activations and shadow weights. Arithmetic on it accumulates in f32.
    Bf16,
    /// Token ids, labels, masks.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::U32 => "u32",
        })
    }
}

pub(crate) enum Storage {
    F32(Buf),
    Bf16(Vec<u16>),
    U32(Vec<u32>),
    Cuda(Buffer),
}

/// A contiguous array on a device. Cloning shares the data.
///
/// ```
/// use tweedie_engine::{DType, Device, Tensor};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let t = Tensor::from_f32(&Device::Cpu, &[2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!((t.len(), t.rows(), t.width(), t.dtype()), (6, 2, 3, DType::F32));
/// assert_eq!(t.row(1)?.to_vec()?, [4.0, 5.0, 6.0]); // a copy on the host, from any device
/// assert_eq!(t.reshape(&[3, 2])?.as_f32()?[1], 2.0); // no copy, from the CPU
/// let e = t.reshape(&[4]).unwrap_err();
/// assert_eq!(e.to_string(), "reshape: [2, 3] has 6 elements, [4] has 4");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    offset: usize, // elements
    shape: Vec<usize>,
    dtype: DType,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Tensor {:?} {} on {}", self.shape, self.dtype, self.device())
    }
}

/// f32 to bf16 bits, rounding to nearest even; NaN stays NaN.
pub fn f32_to_bf16(x: f32) -> u16 {
    let b = x.to_bits();
    if x.is_nan() {
        return (b >> 16) as u16 | 0x40;
    }
    ((b + 0x7fff + ((b >> 16) & 1)) >> 16) as u16
}

/// bf16 bits to f32 (exact).
pub fn bf16_to_f32(x: u16) -> f32 {
    f32::from_bits((x as u32) << 16)
}

impl Tensor {
    fn wrap(storage: Storage, shape: &[usize], dtype: DType) -> Tensor {
        Tensor { storage: Arc::new(storage), offset: 0, shape: shape.to_vec(), dtype }
    }

    /// Wrap a CPU buffer that an op filled.
    pub(crate) fn from_buf(buf: Buf, shape: &[usize]) -> Tensor {
        let fits = elements("tensor", shape).is_ok_and(|n| n == buf.len());
        assert!(fits, "engine bug: a buffer of {} values for {shape:?}", buf.len());
        Tensor::wrap(Storage::F32(buf), shape, DType::F32)
    }

    /// Host data on a GPU. While a graph is captured they are a constant of that graph: copied once, now, to memory that no
    /// replay writes.
    #[track_caller]
    fn upload<T: Copy>(c: &crate::cuda::Cuda, shape: &[usize], dtype: DType, data: &[T]) -> Result<Tensor> {
        if c.is_capturing() {
            let made = Tensor::wrap(Storage::Cuda(c.constant(data)?), shape, dtype);
            c.keep(made.clone());
            return Ok(made);
        }
        let b = c.alloc(std::mem::size_of_val(data)).map_err(|e| e.for_tensor(shape, dtype))?;
        c.upload(&b, data)?;
        Ok(Tensor::wrap(Storage::Cuda(b), shape, dtype))
    }

    /// f32 values on `device`.
    #[track_caller]
    pub fn from_f32(device: &Device, shape: &[usize], data: Vec<f32>) -> Result<Tensor> {
        check_len(shape, data.len())?;
        match device {
            Device::Cpu => Ok(Tensor::wrap(Storage::F32(data.into()), shape, DType::F32)),
            Device::Cuda(c) => Tensor::upload(c, shape, DType::F32, &data),
        }
    }

    /// u32 values on `device`.
    #[track_caller]
    pub fn from_u32(device: &Device, shape: &[usize], data: Vec<u32>) -> Result<Tensor> {
        check_len(shape, data.len())?;
        match device {
            Device::Cpu => Ok(Tensor::wrap(Storage::U32(data), shape, DType::U32)),
            Device::Cuda(c) => Tensor::upload(c, shape, DType::U32, &data),
        }
    }

    /// bf16 bit patterns on `device`.
    #[track_caller]
    pub fn from_bf16(device: &Device, shape: &[usize], data: Vec<u16>) -> Result<Tensor> {
        check_len(shape, data.len())?;
        match device {
            Device::Cpu => Ok(Tensor::wrap(Storage::Bf16(data), shape, DType::Bf16)),
            Device::Cuda(c) => Tensor::upload(c, shape, DType::Bf16, &data),
        }
    }

    /// Zeros.
    #[track_caller]
    pub fn zeros(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let n = elements("tensor", shape)?;
        match device {
            Device::Cpu => Ok(match dtype {
                DType::F32 => Tensor::wrap(Storage::F32(Buf::zeros(n)), shape, dtype),
                DType::Bf16 => Tensor::wrap(Storage::Bf16(vec![0; n]), shape, dtype),
                DType::U32 => Tensor::wrap(Storage::U32(vec![0; n]), shape, dtype),
            }),
            Device::Cuda(c) => {
                let t = Tensor::cuda(c, shape, dtype)?;
                c.memset_zero(t.ptr(), n * dtype.size())?;
                Ok(t)
            }
        }
    }

    /// An uninitialised GPU tensor for an op to fill.
    #[track_caller]
    pub(crate) fn cuda(c: &crate::cuda::Cuda, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let n = elements("tensor", shape)?;
        let buffer = c.alloc(n * dtype.size()).map_err(|e| e.for_tensor(shape, dtype))?;
        Ok(Tensor::wrap(Storage::Cuda(buffer), shape, dtype))
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True where an axis is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the data lies.
    pub fn device(&self) -> Device {
        match &*self.storage {
            Storage::Cuda(b) => Device::Cuda(b.device().clone()),
            _ => Device::Cpu,
        }
    }

    pub(crate) fn cuda_device(&self) -> Option<&crate::cuda::Cuda> {
        match &*self.storage {
            Storage::Cuda(b) => Some(b.device()),
            _ => None,
        }
    }

    /// The last axis (1 for a scalar).
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all axes but the last.
    pub fn rows(&self) -> usize {
        self.len().checked_div(self.width()).unwrap_or(0)
    }

    /// The same data under another shape.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        let n = elements("reshape", shape)?;
        ensure!(n == self.len(), "reshape", "{:?} has {} elements, {shape:?} has {n}", self.shape, self.len());
        Ok(Tensor { shape: shape.to_vec(), ..self.clone() })
    }

    /// `len` elements from `start` of the flat data, under `shape`, sharing storage.
    pub(crate) fn view(&self, start: usize, shape: &[usize]) -> Tensor {
        // Ops have checked their inputs; kernels would write beyond a tensor whose bounds are wrong, so this is looked at again.
        let end = elements("view", shape).ok().and_then(|n| n.checked_add(start));
        assert!(end.is_some_and(|e| e <= self.len()), "engine bug: a view {shape:?} from {start} of {self:?}");
        Tensor { offset: self.offset + start, shape: shape.to_vec(), ..self.clone() }
    }

    /// `count` from `first` of the first axis, sharing the data.
    pub fn part(&self, first: usize, count: usize) -> Result<Tensor> {
        let fits = self.shape.first().is_some_and(|all| first.checked_add(count).is_some_and(|end| end <= *all));
        ensure!(fits, "part", "{count} from {first} of {:?}", self.shape);
        let each = self.len().checked_div(self.shape[0]).unwrap_or(0);
        Ok(self.view(first * each, &[&[count], &self.shape[1..]].concat()))
    }

    /// Row `i` of a tensor \[…, width\], counted over all axes before the last, as \[1, width\]. Shares the data where that keeps rows aligned for a GPU, else copies.
    pub fn row(&self, i: usize) -> Result<Tensor> {
        let (rows, width) = (self.rows(), self.width());
        ensure!(i < rows, "row", "row {i} of {:?}", self.shape);
        let shared = self.view(i * width, &[1, width]);
        let Some(c) = self.cuda_device().filter(|_| !(width * self.dtype.size()).is_multiple_of(16)) else {
            return Ok(shared);
        };
        let copy = Tensor::cuda(c, &[1, width], self.dtype)?;
        copy.overwrite(&shared)?;
        Ok(copy)
    }

    /// The values of an f32 tensor on the CPU, without a copy: what an op of one's own reads. An error for another type or device;
    /// see [`Tensor::to_vec`] for those.
    pub fn as_f32(&self) -> Result<&[f32]> {
        match &*self.storage {
            Storage::F32(_) => Ok(self.f32s()),
            _ => Err(Error::op("as_f32", format!("{self:?} is not f32 on the CPU"))),
        }
    }

    /// The values of a u32 tensor on the CPU, without a copy.
    pub fn as_u32(&self) -> Result<&[u32]> {
        match &*self.storage {
            Storage::U32(_) => Ok(self.u32s()),
            _ => Err(Error::op("as_u32", format!("{self:?} is not u32 on the CPU"))),
        }
    }

    /// Whether both lie on one device.
    pub(crate) fn is_beside(&self, other: &Tensor) -> bool {
        self.cuda_device() == other.cuda_device()
    }

    /// The f32 data of a CPU tensor; ops have checked the type before.
    pub(crate) fn f32s(&self) -> &[f32] {
        match &*self.storage {
            Storage::F32(b) => &b[self.offset..self.offset + self.len()],
            _ => panic!("engine bug: f32 CPU data asked of {self:?}"),
        }
    }

    /// The u32 data of a CPU tensor; ops have checked the type before.
    pub(crate) fn u32s(&self) -> &[u32] {
        match &*self.storage {
            Storage::U32(b) => &b[self.offset..self.offset + self.len()],
            _ => panic!("engine bug: u32 CPU data asked of {self:?}"),
        }
    }

    /// The f32 data of a CPU tensor, for writing: only if nothing else shares it.
    pub(crate) fn f32s_mut(&mut self) -> Option<&mut [f32]> {
        let (offset, len) = (self.offset, self.len());
        match Arc::get_mut(&mut self.storage) {
            Some(Storage::F32(b)) => Some(&mut b[offset..offset + len]),
            _ => None,
        }
    }

    /// Whether this is the only handle to its storage.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
    }

    /// Device address of a GPU tensor.
    pub(crate) fn ptr(&self) -> u64 {
        match &*self.storage {
            Storage::Cuda(b) => b.ptr() + (self.offset * self.dtype.size()) as u64,
            _ => panic!("engine bug: GPU address asked of {self:?}"),
        }
    }

    /// Copy to the host as f32 (converting bf16; refusing u32).
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        match (&*self.storage, self.dtype) {
            (Storage::F32(_), _) => Ok(self.f32s().to_vec()),
            (Storage::Bf16(b), _) => {
                Ok(b[self.offset..self.offset + self.len()].iter().map(|&x| bf16_to_f32(x)).collect())
            }
            (Storage::Cuda(b), DType::F32) => {
                let mut v = vec![0.0_f32; self.len()];
                b.device().download(self.ptr(), &mut v)?;
                Ok(v)
            }
            (Storage::Cuda(b), DType::Bf16) => {
                let mut v = vec![0_u16; self.len()];
                b.device().download(self.ptr(), &mut v)?;
                Ok(v.into_iter().map(bf16_to_f32).collect())
            }
            _ => Err(Error::op("to_vec", format!("{self:?} holds integers; use to_vec_u32"))),
        }
    }

    /// Copy to the host as u32.
    pub fn to_vec_u32(&self) -> Result<Vec<u32>> {
        match (&*self.storage, self.dtype) {
            (Storage::U32(_), _) => Ok(self.u32s().to_vec()),
            (Storage::Cuda(b), DType::U32) => {
                let mut v = vec![0_u32; self.len()];
                b.device().download(self.ptr(), &mut v)?;
                Ok(v)
            }
            _ => Err(Error::op("to_vec_u32", format!("{self:?} does not hold integers"))),
        }
    }

    /// The single value of a one-element tensor.
    pub fn item(&self) -> Result<f32> {
        ensure!(self.len() == 1, "item", "{self:?} does not have exactly one element");
        Ok(self.to_vec()?[0])
    }

    /// Copy to `device` (shares the data if it is there already).
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        match (&*self.storage, device) {
            (Storage::Cuda(b), Device::Cuda(c)) if b.device() == c => Ok(self.clone()),
            (Storage::F32(_) | Storage::Bf16(_) | Storage::U32(_), Device::Cpu) => Ok(self.clone()),
            _ => match self.dtype {
                DType::F32 => Tensor::from_f32(device, &self.shape, self.to_vec()?),
                DType::U32 => Tensor::from_u32(device, &self.shape, self.to_vec_u32()?),
                DType::Bf16 => {
                    let bits = self.to_vec()?.into_iter().map(f32_to_bf16).collect();
                    Tensor::from_bf16(device, &self.shape, bits)
                }
            },
        }
    }

    /// Convert between f32 and bf16.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        ensure!(
            dtype != DType::U32 && self.dtype != DType::U32,
            "cast",
            "{self:?} to {dtype} is not a conversion between float types"
        );
        match self.cuda_device() {
            Some(c) => crate::ops::elementwise::cast_cuda(c, self, dtype),
            None => match dtype {
                DType::F32 => Tensor::from_f32(&Device::Cpu, &self.shape, self.to_vec()?),
                _ => {
                    let bits = self.to_vec()?.into_iter().map(f32_to_bf16).collect();
                    Tensor::from_bf16(&Device::Cpu, &self.shape, bits)
                }
            },
        }
    }

    /// Copy `from` \[k, …\] over `at`, `at` + 1, … of the first axis of this tensor, whose other axes are the same. On the CPU data
    /// that somebody else holds too are copied first; on a GPU all holders see what is written.
    pub fn write_at(&mut self, at: usize, from: &Tensor) -> Result<()> {
        let fits = match (self.shape(), from.shape()) {
            ([rows, rest @ ..], [k, other @ ..]) => rest == other && at.checked_add(*k).is_some_and(|end| end <= *rows),
            _ => false,
        };
        ensure!(
            fits && self.dtype == from.dtype && self.is_beside(from),
            "write_at",
            "{from:?} cannot be written at {at} of {self:?}"
        );
        let start = at * self.len().checked_div(self.shape[0]).unwrap_or(0);
        if self.cuda_device().is_some() {
            return self.view(start, from.shape()).overwrite(from);
        }
        ensure!(self.dtype == DType::F32, "write_at", "on the CPU {self:?} must be f32");
        if self.f32s_mut().is_none() {
            *self = Tensor::from_f32(&Device::Cpu, &self.shape, self.f32s().to_vec())?;
        }
        if let Some(data) = self.f32s_mut() {
            data[start..][..from.len()].copy_from_slice(from.f32s());
        }
        Ok(())
    }

    /// Overwrite a GPU tensor's data in place (inputs of a captured graph keep their address).
    pub fn overwrite(&self, from: &Tensor) -> Result<()> {
        ensure!(
            self.shape == from.shape && self.dtype == from.dtype,
            "overwrite",
            "{from:?} does not have the shape and type of {self:?}"
        );
        match (self.cuda_device(), &*from.storage) {
            (Some(c), Storage::Cuda(b)) if b.device() != c => {
                Err(Error::op("overwrite", format!("{from:?} is not on the device of {self:?}")))
            }
            (Some(c), Storage::Cuda(_)) => c.copy(self.ptr(), from.ptr(), self.len() * self.dtype.size()),
            (Some(c), Storage::F32(_)) => c.upload_to(self.ptr(), from.f32s()),
            (Some(c), Storage::U32(_)) => c.upload_to(self.ptr(), from.u32s()),
            (Some(c), Storage::Bf16(b)) => c.upload_to(self.ptr(), &b[from.offset..from.offset + from.len()]),
            (None, _) => Err(Error::op("overwrite", "only GPU tensors are overwritten in place")),
        }
    }
}

/// Elements of a tensor of `shape`, which must be so few that memory can hold them. Axes beside one of 0 are multiplied too: no
/// product of some of them may be more than a `usize`.
pub(crate) fn elements(op: &'static str, shape: &[usize]) -> Result<usize> {
    let n = shape.iter().try_fold(1_usize, |n, &axis| n.checked_mul(axis.max(1)));
    n.map(|n| if shape.contains(&0) { 0 } else { n })
        .filter(|n| *n <= isize::MAX as usize / 4)
        .ok_or_else(|| Error::op(op, format!("a tensor {shape:?} has more elements than any memory")))
}

fn check_len(shape: &[usize], len: usize) -> Result<()> {
    let want = elements("tensor", shape)?;
    ensure!(want == len, "tensor", "shape {shape:?} needs {want} values, {len} were given");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In every build: a kernel would write beyond the tensor.
    #[test]
    fn a_view_beyond_its_tensor_is_found() {
        let t = Tensor::zeros(&Device::Cpu, &[4, 3], DType::F32).unwrap();
        assert_eq!(t.view(3, &[3, 3]).f32s().len(), 9);
        for (start, shape) in
            [(4, [3, 3]), (12, [1, 1]), (usize::MAX, [1, 1]), (0, [usize::MAX, 2]), (1, [usize::MAX, 1])]
        {
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| t.view(start, &shape))).is_err();
            assert!(found, "{shape:?} from {start}");
        }
    }

    #[test]
    fn rows_are_written_where_they_belong() {
        let make = |shape: &[usize], v: &[f32]| Tensor::from_f32(&Device::Cpu, shape, v.to_vec()).unwrap();
        let mut all = make(&[3, 2], &[0.0; 6]);
        let before = all.clone();
        all.write_at(1, &make(&[2, 2], &[1.0, 2.0, 3.0, 4.0])).unwrap();
        assert_eq!(all.to_vec().unwrap(), [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(before.to_vec().unwrap(), [0.0; 6], "another holder keeps what it had");
        for wrong in [make(&[3, 2], &[0.0; 6]), make(&[1, 3], &[0.0; 3]), make(&[2], &[0.0; 2])] {
            assert!(all.write_at(1, &wrong).unwrap_err().to_string().contains("at 1 of"));
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        assert_eq!(f32_to_bf16(1.0), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80); // a tie goes to even
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::INFINITY), 0x7f80);
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
    }

    #[test]
    fn wrong_lengths_and_types_are_errors() {
        assert!(Tensor::from_f32(&Device::Cpu, &[2, 3], vec![0.0; 5]).is_err());
        let t = Tensor::from_u32(&Device::Cpu, &[2], vec![1, 2]).unwrap();
        assert!(t.to_vec().is_err() && t.cast(DType::F32).is_err() && t.reshape(&[3]).is_err());
    }
}
