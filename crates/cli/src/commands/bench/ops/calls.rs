//! Ops made ready to be called again and again.

use tweedie_engine::{DType, Device, Group, Noise, ParamId, Params, ParamsBuilder, Result, Tape, Tensor, Var, ops};

/// Where and in which type.
pub struct Setup {
    pub device: Device,
    pub dtype: DType,
    pub quick: bool,
}

impl Setup {
    pub fn new(device: Device, quick: bool) -> Setup {
        let dtype = if device == Device::Cpu { DType::F32 } else { DType::Bf16 };
        Setup { device, dtype, quick }
    }

    /// Normal values in f32, made on the device.
    pub fn normal(&self, stream: u32, shape: &[usize], scale: f32) -> Result<Tensor> {
        let tape = Tape::inference();
        let ids = Tensor::from_u32(&self.device, &[1], vec![0])?;
        let z = Noise::new(&self.device, 5, stream, 0)?.normal(&ids, shape.iter().product())?;
        ops::elementwise::scale(&tape, &tape.constant(z), scale)?.value().reshape(shape)
    }
}

/// Something to time.
pub trait Timed {
    /// Forward alone, or the whole of what has no backward.
    fn forward(&mut self) -> Result<()>;
    /// Forward and backward; `None` where there is no backward.
    fn both(&mut self) -> Option<Result<()>>;
}

/// A plain step such as the optimizer's.
impl<F: FnMut() -> Result<()>> Timed for F {
    fn forward(&mut self) -> Result<()> {
        self()
    }

    fn both(&mut self) -> Option<Result<()>> {
        None
    }
}

/// An input of an op on the tape.
enum Input {
    /// In the compute type, with gradient.
    Activation(Tensor),
    /// f32 master with a bf16 shadow on the GPU; its gradient is added into the flat buffer.
    Parameter(ParamId),
}

/// An op on the tape with its inputs.
pub struct TapeOp<R> {
    inputs: Vec<Input>,
    params: Params,
    run: R,
    dy: Tensor,
}

impl<R: Fn(&Tape, &[Var]) -> Result<Var> + 'static> TapeOp<R> {
    /// `run` gets the activations, then the parameters, of these shapes.
    pub fn make(s: &Setup, activations: &[&[usize]], parameters: &[&[usize]], run: R) -> Result<Box<dyn Timed>> {
        let mut inputs = Vec::new();
        for (i, shape) in activations.iter().enumerate() {
            inputs.push(Input::Activation(s.normal(i as u32, shape, 1.0)?.cast(s.dtype)?));
        }
        let mut builder = ParamsBuilder::default();
        for (i, shape) in parameters.iter().enumerate() {
            let values = s.normal(100 + i as u32, shape, 0.02)?.to_vec()?;
            inputs.push(Input::Parameter(builder.add(format!("p{i}"), shape, Group::Decay, values)?));
        }
        let params = builder.build(&s.device, s.dtype == DType::Bf16)?;
        let tape = Tape::inference();
        let out = run(&tape, &vars(&tape, &inputs, &params))?;
        let dy = s.normal(200, out.shape(), 1.0)?.cast(out.value().dtype())?;
        Ok(Box::new(TapeOp { inputs, params, run, dy }))
    }
}

fn vars(tape: &Tape, inputs: &[Input], params: &Params) -> Vec<Var> {
    let var = |i: &Input| match i {
        Input::Activation(t) => tape.leaf(t.clone()),
        Input::Parameter(id) => tape.param(params, *id),
    };
    inputs.iter().map(var).collect()
}

impl<R: Fn(&Tape, &[Var]) -> Result<Var>> Timed for TapeOp<R> {
    /// As in sampling: nothing is kept for a backward pass.
    fn forward(&mut self) -> Result<()> {
        let tape = Tape::inference();
        (self.run)(&tape, &vars(&tape, &self.inputs, &self.params)).map(|_| ())
    }

    /// As in training.
    fn both(&mut self) -> Option<Result<()>> {
        self.params.discard_grads();
        let tape = Tape::new();
        let out = (self.run)(&tape, &vars(&tape, &self.inputs, &self.params));
        Some(out.and_then(|out| tape.backward_from(&out, self.dy.clone(), Some(&mut self.params)).map(|_| ())))
    }
}
