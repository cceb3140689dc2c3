//! Conditions of images that come and go, each in a place of its own, so that a batch of any of them needs no copies of what was there
//! before.

use tweedie_engine::ops::attention::Rows;
use tweedie_engine::ops::{elementwise, tokens};
use tweedie_engine::{DType, Tape, Tensor, Var};

use super::context::{Keys, Seen};
use super::{Context, Model};
use crate::error::{Error, Result};

/// Places for the conditions of images, and one more for the null condition.
pub(crate) struct ContextPool {
    /// Of images.
    places: usize,
    dtype: DType,
    held: Option<Held>,
}

/// What lies in the places; the null condition behind them.
struct Held {
    seen: HeldSeen,
    /// Of the direct path, f32 \[places + 1, d\]; zero behind the places.
    direct: Option<Tensor>,
}

enum HeldSeen {
    /// Tokens f32 \[places + 1, C·d\], and C.
    Tokens(Tensor, usize),
    /// Keys and values of each block, \[places + 1, C, 2·d\].
    Keys(Vec<Tensor>),
}

impl ContextPool {
    pub fn new(model: &Model, places: usize) -> ContextPool {
        ContextPool { places, dtype: model.dtype(), held: None }
    }

    /// The place of the null condition.
    pub fn null(&self) -> usize {
        self.places
    }

    /// Keep the first conditions of `made`, which has the null condition too, at `places`, one each.
    pub fn put(&mut self, made: &Context, places: &[usize]) -> Result<()> {
        if places.iter().any(|p| *p >= self.places) {
            return Err(Error::Input(format!("there are {} places for conditions, not {places:?}", self.places)));
        }
        let mut held = match self.held.take() {
            Some(held) => held,
            None => Held::like(made, self.places)?,
        };
        held.write(made, places)?;
        self.held = Some(held);
        Ok(())
    }

    /// A condition for each row of a batch: that of place `of[i]`.
    pub fn rows(&self, tape: &Tape, of: &[u32]) -> Result<Context> {
        let Some(held) = &self.held else { return Ok(Context { seen: Seen::Nothing, direct: None }) };
        let gather = |table: &Tensor| -> Result<Var> {
            let ids = Tensor::from_u32(&table.device(), &[of.len()], of.to_vec())?;
            Ok(tokens::embed(tape, &tape.constant(table.clone()), &ids, self.dtype)?)
        };
        let shaped = |x: Var, c: usize| {
            let d = x.value().width() / c.max(1);
            elementwise::reshape(tape, &x, &[of.len(), c, d])
        };
        let direct = match &held.direct {
            Some(table) => Some(shaped(gather(table)?, 1)?),
            None => None,
        };
        let seen = match &held.seen {
            HeldSeen::Tokens(table, c) => Seen::Tokens { own: shaped(gather(table)?, *c)?, null: None },
            HeldSeen::Keys(blocks) => {
                let Some(first) = blocks.first() else { return Err(Error::Input("a denoiser without blocks".into())) };
                let rows = Rows::new(&first.device(), of, self.places + 1)?;
                let blocks = blocks.iter().map(|b| tape.constant(b.clone())).collect();
                Seen::Keys(Keys { blocks, rows, images: self.places, null: true })
            }
        };
        Ok(Context { seen, direct })
    }
}

impl Held {
    /// Empty places for conditions like these.
    fn like(context: &Context, places: usize) -> Result<Held> {
        let zeros = |like: &Tensor, rest: &[usize], dtype| {
            Tensor::zeros(&like.device(), &[&[places + 1], rest].concat(), dtype)
        };
        let seen = match &context.seen {
            Seen::Nothing => return Err(Error::Input("this model is told nothing".into())),
            Seen::Tokens { own, .. } => match *own.shape() {
                [_, c, d] => HeldSeen::Tokens(zeros(own.value(), &[c * d], DType::F32)?, c),
                _ => return Err(Error::Input(format!("a condition of shape {:?}", own.shape()))),
            },
            Seen::Keys(keys) => {
                let like = |b: &Var| zeros(b.value(), &b.shape()[1..], b.value().dtype());
                HeldSeen::Keys(keys.blocks.iter().map(like).collect::<tweedie_engine::Result<_>>()?)
            }
        };
        let direct = match &context.direct {
            Some(d) => Some(zeros(d.value(), &[d.value().width()], DType::F32)?),
            None => None,
        };
        Ok(Held { seen, direct })
    }

    /// Keep conditions, the null condition among them.
    fn write(&mut self, context: &Context, places: &[usize]) -> Result<()> {
        match (&mut self.seen, &context.seen) {
            (HeldSeen::Tokens(table, _), Seen::Tokens { own, null }) => {
                let width = table.width();
                let flat = |x: &Var| Ok::<_, Error>(x.value().reshape(&[x.shape()[0], width])?.cast(DType::F32)?);
                scatter(table, &flat(own)?, places)?;
                if let Some(null) = null {
                    table.write_at(table.shape()[0] - 1, &flat(null)?)?;
                }
            }
            (HeldSeen::Keys(blocks), Seen::Keys(keys)) => {
                for (to, from) in blocks.iter_mut().zip(&keys.blocks) {
                    scatter(to, from.value(), places)?;
                    let null = from.value().part(keys.images, 1)?;
                    to.write_at(to.shape()[0] - 1, &null)?;
                }
            }
            _ => return Err(Error::Input("conditions of two kinds".into())),
        }
        if let (Some(table), Some(direct)) = (&mut self.direct, &context.direct) {
            let flat = direct.value().reshape(&[direct.shape()[0], table.width()])?.cast(DType::F32)?;
            scatter(table, &flat, places)?;
        }
        Ok(())
    }
}

/// Row i of `from` goes to row `places[i]` of `to`; runs of places in one piece.
fn scatter(to: &mut Tensor, from: &Tensor, places: &[usize]) -> Result<()> {
    let mut first = 0;
    for run in places.chunk_by(|a, b| a + 1 == *b) {
        to.write_at(run[0], &from.part(first, run.len())?)?;
        first += run.len();
    }
    Ok(())
}
