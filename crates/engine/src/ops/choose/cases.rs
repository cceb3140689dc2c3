//! Examples for comparing devices; the op has no gradient, so finite differences only run it.

use super::{Banned, Choose, Chosen, FREE, How, MAX_TOP, choose};
use crate::cases::{Case, Role, Size};
use crate::device::Device;
use crate::error::Result;
use crate::rng::Noise;
use crate::tensor::Tensor;

/// Which of the results a case looks at: side by side, the size of one would hide errors of another.
#[derive(Clone, Copy, Debug)]
enum ResultPart {
    Tokens,
    Numbers,
    Probabilities,
    Top,
}

#[derive(Clone, Copy)]
struct Options {
    guided: bool,
    drawn: bool,
    limits: bool,
    /// Rows of logits that start aligned, with columns beyond the classes.
    longer: bool,
}

impl Options {
    fn label(self) -> String {
        let with = |on: bool, text: &'static str| if on { text } else { "" };
        format!(
            "{}{}{}{}",
            if self.drawn { "drawn" } else { "argmax" },
            with(self.guided, ", guided"),
            with(self.limits, ", banned and fixed"),
            with(self.longer, ", longer rows")
        )
    }
}

fn numbers(x: &Tensor) -> Result<Vec<f32>> {
    Ok(x.to_vec_u32()?.into_iter().map(|v| v as f32).collect())
}

/// Every `every`-th row keeps a token.
fn fixed(device: &Device, rows: usize, vocab: usize, every: usize) -> Result<Tensor> {
    let of = |r: usize| if r % every == 1 { (r * 7 % vocab) as u32 } else { FREE };
    Tensor::from_u32(device, &[rows], (0..rows).map(of).collect())
}

fn part(c: &Chosen, part: ResultPart) -> Result<Vec<f32>> {
    let mut out = Vec::new();
    match part {
        ResultPart::Tokens => out.extend(numbers(&c.tokens)?),
        ResultPart::Numbers => {
            out.extend(c.numbers()?.log_prob.to_vec()?);
            out.extend(c.numbers()?.entropy.to_vec()?);
        }
        ResultPart::Probabilities => out.extend(c.probabilities.as_ref().map_or(Ok(Vec::new()), Tensor::to_vec)?),
        ResultPart::Top => {
            if let Some((tokens, log_probs)) = &c.top {
                out.extend(numbers(tokens)?);
                out.extend(log_probs.to_vec()?);
            }
        }
    }
    Ok(out)
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    // Batch, tokens, vocabulary; the last has more than one tile of the widest block.
    let shapes: &[[usize; 3]] = match size {
        Size::Tiny => &[[2, 2, 3]],
        Size::Full => &[[1, 1, 2], [12, 1, 10], [3, 5, 27], [2, 17, 1000], [1, 197, 257], [2, 3, 30522]],
    };
    let mut out = Vec::new();
    for &[b, n, v] in shapes {
        for (i, o) in [
            (false, false, false, false),
            (true, false, true, false),
            (false, true, true, false),
            (true, true, false, true),
            (false, false, true, true),
        ]
        .map(|(guided, drawn, limits, longer)| Options { guided, drawn, limits, longer })
        .into_iter()
        .enumerate()
        {
            let width = if o.longer { (v + 1).next_multiple_of(8) } else { v };
            for p in [ResultPart::Tokens, ResultPart::Numbers, ResultPart::Probabilities, ResultPart::Top] {
                let label = format!("[{b}, {n}, {v}] {}: {p:?}", o.label());
                let case = Case::new("choose", label, move |t, vars| {
                    let logits = vars[0].value();
                    let device = logits.device();
                    let rows = b * n;
                    // Keys and weights for all, or for each example its own.
                    let (noise, weights) = match o.longer {
                        false => (Noise::new(&device, 3, 4, 5)?.later(6), vec![1.75]),
                        true => {
                            let keys: Vec<(u64, u32)> = (0..b).map(|e| (e as u64 + (1 << 33), 3 * e as u32)).collect();
                            (Noise::of_each(&device, 4, &keys)?, (0..b).map(|e| 1.75 - e as f32).collect())
                        }
                    };
                    let examples = Tensor::from_u32(&device, &[b], (0..b as u32).map(|e| 10 * e).collect())?;
                    let weight = Tensor::from_f32(&device, &[weights.len()], weights)?;
                    let classes = Tensor::from_u32(&device, &[2], vec![0, v as u32 - 1])?;
                    // No row loses all classes, and none its fixed token.
                    let fixed = fixed(&device, rows, v, 3)?;
                    let bits = fixed.to_vec_u32()?.into_iter().enumerate();
                    let bits = bits.map(|(r, g)| if g == FREE { (r % 3) as u32 } else { 0 }).collect();
                    let bits = Tensor::from_u32(&device, &[rows], bits)?;
                    let chosen = choose(
                        logits,
                        &Choose {
                            tokens: n,
                            classes: o.longer.then_some(v),
                            guidance: o.guided.then_some(&weight),
                            how: match o.drawn {
                                true => How::Drawn { noise: &noise, examples: &examples },
                                false => How::Argmax,
                            },
                            banned: o.limits.then_some(Banned { classes: &classes, rows: &bits }),
                            fixed: o.limits.then_some(&fixed),
                            numbers: matches!(p, ResultPart::Numbers),
                            probabilities: matches!(p, ResultPart::Probabilities),
                            // Never so many that a banned class is among them: its logarithm is not finite.
                            top: if matches!(p, ResultPart::Top) { (v - 1).min(2 * i + 1).min(MAX_TOP) } else { 0 },
                        },
                    )?;
                    let values = part(&chosen, p)?;
                    Ok(t.constant(Tensor::from_f32(&Device::Cpu, &[values.len()], values)?))
                });
                let copies = if o.guided { 2 } else { 1 };
                out.push(case.normal("logits", Role::Type, &[copies * b, n, width], 3.0));
            }
        }
    }
    out
}
