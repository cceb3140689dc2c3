//! Parameters in flat buffers: value, gradient, both moments, average and bf16 shadow are each one array, so that
//! clipping, AdamW and EMA are one pass and a checkpoint is one write.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::device::Device;
use crate::error::{Error, Result, ensure};
use crate::tape::FlatGrads;
use crate::tensor::{DType, Tensor, elements};

/// Names one parameter of the [`Params`] that it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamId(pub(crate) usize);

/// How the optimizer treats a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Weight matrices: decayed.
    Decay,
    /// Weight matrices inside a network's blocks: decayed, and Muon's where it is used. `parts` matrices lie on top of each other
    /// in it (queries, keys and values are three).
    Hidden {
        /// How many.
        parts: usize,
    },
    /// Biases, norms, position embeddings, tokens: not decayed.
    NoDecay,
    /// Not trained.
    Frozen,
}

impl Group {
    /// Which part of the flat buffers it lies in.
    fn range(self) -> usize {
        match self {
            Group::Decay => 0,
            Group::Hidden { .. } => 1,
            Group::NoDecay => 2,
            Group::Frozen => 3,
        }
    }
}

/// One of each range, in the order of the flat buffers. What is decayed lies together: AdamW takes it in one pass.
const GROUPS: [Group; 4] = [Group::Decay, Group::Hidden { parts: 1 }, Group::NoDecay, Group::Frozen];

/// Each parameter starts at a multiple of this many elements: 256 bytes in bf16, the alignment cuBLASLt likes best.
pub(crate) const ALIGN: usize = 128;

#[derive(Clone, Debug)]
struct Spec {
    name: String,
    shape: Vec<usize>,
    group: Group,
    start: usize,
}

/// Collects parameters before the flat buffers are made.
#[derive(Default)]
pub struct ParamsBuilder {
    specs: Vec<Spec>,
    values: Vec<Vec<f32>>,
}

impl ParamsBuilder {
    /// Add a parameter with its initial values.
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize], group: Group, values: Vec<f32>) -> Result<ParamId> {
        let name = name.into();
        let n = elements("parameter", shape)?;
        ensure!(values.len() == n, "parameter", "{name} {shape:?} needs {n} values, {} were given", values.len());
        ensure!(self.specs.iter().all(|s| s.name != name), "parameter", "there are two parameters named {name}");
        if let Group::Hidden { parts } = group {
            let fits = shape.len() == 2 && n > 0 && parts > 0 && shape[0].is_multiple_of(parts);
            ensure!(fits, "parameter", "{name} {shape:?} does not consist of {parts} matrices on top of each other");
        }
        self.specs.push(Spec { name, shape: shape.to_vec(), group, start: 0 });
        self.values.push(values);
        Ok(ParamId(self.specs.len() - 1))
    }

    /// Make the buffers on `device`; `low` adds the bf16 shadow that GPU products read.
    pub fn build(mut self, device: &Device, low: bool) -> Result<Params> {
        ensure!(!low || *device != Device::Cpu, "parameters", "the CPU computes in f32; bf16 needs a GPU");
        let mut ranges = Vec::new();
        let mut end = 0;
        for group in GROUPS {
            let first = end;
            for s in self.specs.iter_mut().filter(|s| s.group.range() == group.range()) {
                s.start = end;
                end += s.shape.iter().product::<usize>().div_ceil(ALIGN) * ALIGN;
            }
            ranges.push((group, first..end));
        }
        let mut flat = vec![0.0; end];
        for (s, v) in self.specs.iter().zip(&self.values) {
            flat[s.start..s.start + v.len()].copy_from_slice(v);
        }
        let values = Tensor::from_f32(device, &[end], flat)?;
        let grads =
            FlatGrads { data: Tensor::zeros(device, &[end], DType::F32)?, touched: vec![false; self.specs.len()] };
        let low = if low { Some(values.cast(DType::Bf16)?) } else { None };
        let transposed = self.specs.iter().map(|_| Transposed::default()).collect();
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(Params { number, specs: self.specs, ranges, values, low, transposed, grads: Some(grads) })
    }
}

/// A model's parameters: made by a [`ParamsBuilder`], read by a tape, changed by the optimizer.
///
/// A [`ParamId`] is an index into the parameters that it was made with; methods that take one panic where there is no parameter of
/// that number, as a `Vec` does.
///
/// ```
/// use tweedie_engine::{Device, Group, ParamsBuilder};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let mut builder = ParamsBuilder::default();
/// let w = builder.add("layer.weight", &[2, 3], Group::Decay, vec![0.5; 6])?;
/// builder.add("layer.bias", &[2], Group::NoDecay, vec![0.0; 2])?;
/// let mut params = builder.build(&Device::Cpu, false)?;
/// assert_eq!((params.count(), params.find("layer.weight")), (8, Some(w)));
/// params.set(w, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(params.value(w).row(1)?.to_vec()?, [4.0, 5.0, 6.0]);
/// # Ok(())
/// # }
/// ```
pub struct Params {
    number: u64,
    specs: Vec<Spec>,
    ranges: Vec<(Group, Range<usize>)>,
    pub(crate) values: Tensor,
    pub(crate) low: Option<Tensor>,
    /// Weights as CPU products of few rows read them best; made when one asks without wanting gradients.
    transposed: Vec<Transposed>,
    grads: Option<FlatGrads>,
}

/// A matrix of [`Group::Hidden`]: where it begins in the flat buffers, and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hidden {
    pub start: usize,
    pub rows: usize,
    pub cols: usize,
}

/// A part of the flat buffers.
pub(crate) struct Section {
    pub group: Group,
    pub members: Vec<Member>,
}

/// Where a parameter lies in the flat buffers.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Its number: parameters are numbered as they were added.
    pub number: usize,
    pub place: Range<usize>,
    /// With the padding behind it.
    pub padded: Range<usize>,
}

/// A weight matrix transposed, once it was asked for.
pub(crate) type Transposed = Arc<OnceLock<Tensor>>;

impl Params {
    /// Number of values (without padding).
    pub fn count(&self) -> usize {
        self.specs.iter().map(|s| s.shape.iter().product::<usize>()).sum()
    }

    /// Length of the flat buffers.
    pub fn flat_len(&self) -> usize {
        self.values.len()
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.values.device()
    }

    /// Parts of the flat buffers by group.
    pub(crate) fn ranges(&self) -> &[(Group, Range<usize>)] {
        &self.ranges
    }

    /// The matrices of [`Group::Hidden`], in the order of the flat buffers.
    pub(crate) fn hidden(&self) -> Vec<Hidden> {
        let mut all = Vec::new();
        for s in &self.specs {
            if let Group::Hidden { parts } = s.group {
                let (rows, cols) = (s.shape[0] / parts, s.shape[1]);
                all.extend((0..parts).map(|i| Hidden { start: s.start + i * rows * cols, rows, cols }));
            }
        }
        all
    }

    /// Parts of the flat buffers by group, with the parameters in them.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let member = |(number, s): (usize, &Spec)| {
            let n: usize = s.shape.iter().product();
            Member { number, place: s.start..s.start + n, padded: s.start..s.start + n.div_ceil(ALIGN) * ALIGN }
        };
        let of = |group: Group| Section {
            group,
            members: self
                .specs
                .iter()
                .enumerate()
                .filter(|(_, s)| s.group.range() == group.range())
                .map(member)
                .collect(),
        };
        GROUPS.into_iter().map(of).collect()
    }

    /// All parameters in the order they were added: name, shape, id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[usize], ParamId)> {
        self.specs.iter().enumerate().map(|(i, s)| (s.name.as_str(), s.shape.as_slice(), ParamId(i)))
    }

    /// The parameter named `name`.
    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.specs.iter().position(|s| s.name == name).map(ParamId)
    }

    /// The part of a flat buffer (moments, average, …) of [`Params::flat_len`] values that belongs to `id`.
    pub fn part(&self, flat: &Tensor, id: ParamId) -> Result<Tensor> {
        ensure!(
            flat.shape() == [self.flat_len()],
            "parameter",
            "a flat buffer of these parameters is [{}], this is {flat:?}",
            self.flat_len()
        );
        Ok(self.part_of(flat, id))
    }

    fn part_of(&self, flat: &Tensor, id: ParamId) -> Tensor {
        let s = &self.specs[id.0];
        flat.view(s.start, &s.shape)
    }

    /// A flat buffer (moments, average, …) put together from the values of each parameter.
    pub fn flatten(&self, mut part: impl FnMut(&str, &[usize]) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
        let mut flat = vec![0.0; self.flat_len()];
        for s in &self.specs {
            let v = part(&s.name, &s.shape)?;
            let n: usize = s.shape.iter().product();
            ensure!(v.len() == n, "parameter", "{} {:?} needs {n} values, {} were given", s.name, s.shape, v.len());
            flat[s.start..s.start + n].copy_from_slice(&v);
        }
        Ok(flat)
    }

    /// A parameter's value.
    pub fn value(&self, id: ParamId) -> Tensor {
        self.part_of(&self.values, id)
    }

    /// A parameter's gradient.
    pub fn grad(&self, id: ParamId) -> Option<Tensor> {
        self.grads.as_ref().map(|g| self.part_of(&g.data, id))
    }

    pub(crate) fn view(&self, id: ParamId) -> (Tensor, Option<Tensor>) {
        (self.value(id), self.low.as_ref().map(|l| self.part_of(l, id)))
    }

    pub(crate) fn transposed(&self, id: ParamId) -> Transposed {
        self.transposed[id.0].clone()
    }

    /// Forget what was derived from the values: whoever changes them calls this.
    pub(crate) fn values_changed(&mut self) {
        self.transposed.iter_mut().filter(|t| t.get().is_some()).for_each(|t| *t = Transposed::default());
    }

    pub(crate) fn is_frozen(&self, id: ParamId) -> bool {
        self.specs[id.0].group == Group::Frozen
    }

    pub(crate) fn place(&self, id: ParamId) -> (usize, &[usize]) {
        (self.specs[id.0].start, &self.specs[id.0].shape)
    }

    /// Which [`Params`] this is: no two have the same number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The gradients, for the time of one backward pass.
    pub(crate) fn take_grads(&mut self) -> Result<FlatGrads> {
        self.grads.take().ok_or_else(|| Error::op("backward", "a backward pass over these parameters did not end"))
    }

    pub(crate) fn return_grads(&mut self, g: FlatGrads) {
        self.grads = Some(g);
    }

    /// Forget the gradients: the next backward pass starts afresh.
    pub fn discard_grads(&mut self) {
        if let Some(g) = &mut self.grads {
            g.touched.fill(false);
        }
    }

    /// Make the flat gradients ready for the optimizer: parameters that no op wrote to since the last call read as zero, and the next
    /// backward pass starts afresh.
    pub(crate) fn finish_grads(&mut self) -> Result<()> {
        let Params { specs, grads, .. } = self;
        let Some(g) = grads else { return Err(Error::op("optimizer", "a backward pass is under way")) };
        for (i, s) in specs.iter().enumerate() {
            if std::mem::take(&mut g.touched[i]) {
                continue;
            }
            g.zero(s.start..s.start + s.shape.iter().product::<usize>())?;
        }
        Ok(())
    }

    /// A copy of the gradients of one backward pass, on the device; the next starts afresh.
    pub fn take_flat_grads(&mut self) -> Result<Tensor> {
        self.finish_grads()?;
        let flat = self.finished_grads()?;
        match flat.cuda_device() {
            None => Tensor::from_f32(&Device::Cpu, flat.shape(), flat.f32s().to_vec()),
            Some(c) => {
                let copy = Tensor::cuda(c, flat.shape(), DType::F32)?;
                copy.overwrite(flat)?;
                Ok(copy)
            }
        }
    }

    /// Put gradients that [`Params::take_flat_grads`] gave, or a sum of such, where the optimizer finds them
    /// ([`AdamW::apply`](crate::optim::AdamW::apply)).
    pub fn set_flat_grads(&mut self, flat: Tensor) -> Result<()> {
        let mut grads = self.take_grads()?;
        let fits = flat.shape() == grads.data.shape() && flat.is_beside(&grads.data) && flat.dtype() == DType::F32;
        let given = format!("{flat:?}");
        if fits {
            grads.data = flat;
        }
        grads.touched.fill(false);
        self.return_grads(grads);
        ensure!(fits, "gradients", "{given} are not those of these parameters");
        Ok(())
    }

    /// The flat gradients.
    pub(crate) fn finished_grads(&self) -> Result<&Tensor> {
        self.grads.as_ref().map(|g| &g.data).ok_or_else(|| Error::op("optimizer", "a backward pass is under way"))
    }

    /// The values of the first rank, at all of them.
    pub fn take_from_first(&mut self, comm: &crate::comm::Comm) -> Result<()> {
        self.values_changed();
        comm.begin_broadcast(&self.values, 0..self.values.len(), 0)?.finish(&mut self.values)?;
        if let Some(low) = &self.low {
            low.overwrite(&self.values.cast(DType::Bf16)?)?;
        }
        Ok(())
    }

    /// Overwrite a parameter.
    pub fn set(&mut self, id: ParamId, values: &[f32]) -> Result<()> {
        self.values_changed();
        let Spec { name, shape, start, .. } = &self.specs[id.0];
        let n: usize = shape.iter().product();
        ensure!(values.len() == n, "parameter", "{name} {shape:?} needs {n} values, {} were given", values.len());
        match self.values.cuda_device() {
            Some(c) => {
                c.upload_to(self.values.view(*start, shape).ptr(), values)?;
                if let Some(low) = &self.low {
                    let bits: Vec<u16> = values.iter().map(|&x| crate::tensor::f32_to_bf16(x)).collect();
                    c.upload_to(low.view(*start, shape).ptr(), &bits)?;
                }
            }
            None => match self.values.f32s_mut() {
                Some(all) => all[*start..*start + n].copy_from_slice(values),
                None => return Err(Error::op("parameter", format!("{name} is in use by a tape; drop it first"))),
            },
        }
        Ok(())
    }
}
