//! What a sampler must keep: tokens that are fixed (prompt, infill), and where a text may end.

use tweedie_engine::ops::choose::{Banned, FREE};
use tweedie_engine::{Device, Tensor};

use crate::error::{Error, Result};

/// Where texts end. `eos` ends a text, `pad` fills the rest; they may be the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The token after the last one of a text.
    pub eos: u32,
    /// The token after that.
    pub pad: u32,
    /// The mark for words that the vocabulary lacks: never written, unless fixed.
    pub unk: Option<u32>,
    /// Exactly this many tokens before the end; `None`: as the model likes.
    pub length: Option<usize>,
    /// At least this many.
    pub min_length: usize,
}

/// The limits of a batch, on the device.
#[derive(Default)]
pub(super) struct Limits {
    /// Tokens that stay, u32 \[B·N\].
    pub fixed: Option<Tensor>,
    /// The same for models with per-token time, which are shown them clean: which they are, u32 \[B, N\], and a token for each place, u32 \[B·N\].
    pub clean: Option<(Tensor, Tensor)>,
    /// Classes that may not be chosen, and for each row which of them.
    banned: Option<(Tensor, Tensor)>,
}

/// The limits of texts, on the host.
pub(crate) struct Kept {
    /// Tokens that stay, or [`FREE`]; \[B·N\].
    pub tokens: Vec<u32>,
    /// Classes that some places may not take; none where all may be taken.
    pub classes: Vec<u32>,
    /// Which of them, a bit each; \[B·N\].
    pub bans: Vec<u32>,
}

impl Kept {
    /// For `batch` examples of `n` tokens. `fixed` holds a token or `None` for each place.
    pub fn new(
        (batch, n, vocab): (usize, usize, usize),
        fixed: Option<&[Option<u32>]>,
        ending: Option<&Ending>,
    ) -> Result<Kept> {
        let rows = batch * n;
        let mut kept = vec![FREE; rows];
        if let Some(ending) = ending {
            let Ending { eos, pad, unk, length, min_length } = *ending;
            for token in [eos, pad].into_iter().chain(unk) {
                if token as usize >= vocab {
                    return Err(Error::Input(format!("the mark {token} is not below the vocabulary {vocab}")));
                }
            }
            if min_length > n {
                let wrong = format!("at least {min_length} tokens are wanted, the model writes {n} at most");
                return Err(Error::Input(wrong));
            }
            if let Some(length) = length {
                if length > n {
                    return Err(Error::Input(format!("a length of {length} is more than the {n} tokens of the model")));
                }
                if length < min_length {
                    let wrong =
                        format!("a length of {length} is wanted and at least {min_length} tokens: not both can be");
                    return Err(Error::Input(wrong));
                }
                for row in kept.chunks_exact_mut(n) {
                    row[length..].fill(pad);
                    row[length..].first_mut().into_iter().for_each(|t| *t = eos);
                }
            }
        }
        if let Some(fixed) = fixed {
            if fixed.len() != rows {
                return Err(Error::Input(format!("{} fixed tokens for {batch} texts of {n}", fixed.len())));
            }
            for (i, (k, g)) in kept.iter_mut().zip(fixed).enumerate() {
                let Some(g) = *g else { continue };
                if g as usize >= vocab {
                    return Err(Error::Input(format!("fixed token {g} at {i} is not below the vocabulary {vocab}")));
                }
                if *k != FREE && *k != g {
                    return Err(Error::Input(format!("the token fixed at place {} lies after the end", i % n)));
                }
                *k = g;
            }
        }
        let (classes, bans) = match ending {
            Some(e) if e.length.is_some() || e.min_length > 0 || e.unk.is_some() || fixed.is_some() => {
                let least = e.length.unwrap_or(0).max(e.min_length);
                // A text that ended in a gap would lose the fixed tokens after it.
                let word = |k: &u32| ![FREE, e.eos, e.pad].contains(k);
                let until: Vec<usize> =
                    kept.chunks(n).map(|k| k.iter().rposition(word).unwrap_or(0).max(least)).collect();
                // A fixed token stays even if it is an end.
                let bits = |r: usize| match kept[r] == FREE {
                    true => 0b100 | if r % n < until[r / n] { 0b11 } else { 0 },
                    false => 0,
                };
                ([e.eos, e.pad].into_iter().chain(e.unk).collect(), (0..rows).map(bits).collect())
            }
            _ => (Vec::new(), vec![0; rows]),
        };
        Ok(Kept { tokens: kept, classes, bans })
    }
}

impl Limits {
    /// For `batch` examples of `n` tokens. `fixed` holds a token or `None` for each place.
    pub fn new(
        device: &Device,
        (batch, n, vocab): (usize, usize, usize),
        fixed: Option<&[Option<u32>]>,
        ending: Option<&Ending>,
    ) -> Result<Limits> {
        let Kept { tokens: kept, classes, bans } = Kept::new((batch, n, vocab), fixed, ending)?;
        let rows = kept.len();
        let banned = match classes.len() {
            0 => None,
            count => Some((Tensor::from_u32(device, &[count], classes)?, Tensor::from_u32(device, &[rows], bans)?)),
        };
        if kept.iter().all(|k| *k == FREE) {
            return Ok(Limits { banned, ..Limits::default() });
        }
        let flags = kept.iter().map(|k| (*k != FREE) as u32).collect();
        let tokens = kept.iter().map(|k| if *k == FREE { 0 } else { *k }).collect();
        let clean = (Tensor::from_u32(device, &[batch, n], flags)?, Tensor::from_u32(device, &[rows], tokens)?);
        Ok(Limits { fixed: Some(Tensor::from_u32(device, &[rows], kept)?), clean: Some(clean), banned })
    }

    /// Where the masked twin starts: the fixed tokens, and `mask` elsewhere; u32 \[B, N\].
    pub fn start(&self, device: &Device, (batch, n): (usize, usize), mask: u32) -> Result<Tensor> {
        let start = match &self.fixed {
            Some(g) => g.to_vec_u32()?.into_iter().map(|t| if t == FREE { mask } else { t }).collect(),
            None => vec![mask; batch * n],
        };
        Ok(Tensor::from_u32(device, &[batch, n], start)?)
    }

    /// Which kinds of limits there are: those of one kind can overwrite each other.
    pub fn kinds(&self) -> (bool, bool) {
        (self.fixed.is_some(), self.banned.is_some())
    }

    /// Memory for limits of the same kinds and sizes.
    pub fn place(&self) -> Result<Limits> {
        let place = |t: &Tensor| Ok::<_, Error>(Tensor::zeros(&t.device(), t.shape(), t.dtype())?);
        let both =
            |t: &Option<(Tensor, Tensor)>| t.as_ref().map(|(a, b)| Ok::<_, Error>((place(a)?, place(b)?))).transpose();
        Ok(Limits {
            fixed: self.fixed.as_ref().map(place).transpose()?,
            clean: both(&self.clean)?,
            banned: both(&self.banned)?,
        })
    }

    /// Take the values of `from`, whose kinds and sizes are the same, at the same place on a GPU.
    pub fn overwrite(&self, from: &Limits) -> Result<()> {
        if let (Some(to), Some(from)) = (&self.fixed, &from.fixed) {
            to.overwrite(from)?;
        }
        for (to, from) in [(&self.clean, &from.clean), (&self.banned, &from.banned)] {
            if let (Some(to), Some(from)) = (to, from) {
                to.0.overwrite(&from.0)?;
                to.1.overwrite(&from.1)?;
            }
        }
        Ok(())
    }

    pub fn banned(&self) -> Option<Banned<'_>> {
        self.banned.as_ref().map(|(classes, rows)| Banned { classes, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDING: Ending = Ending { eos: 8, pad: 9, unk: None, length: None, min_length: 1 };

    fn limits(fixed: &[Option<u32>], ending: Ending) -> Result<Limits> {
        Limits::new(&Device::Cpu, (fixed.len() / 6, 6, 10), Some(fixed), Some(&ending))
    }

    /// Places that may not be an end.
    fn open(l: &Limits) -> Vec<bool> {
        let Some((_, rows)) = &l.banned else { return Vec::new() };
        rows.to_vec_u32().unwrap().iter().map(|bits| bits & 0b11 == 0b11).collect()
    }

    #[test]
    fn no_text_ends_before_its_last_fixed_word() {
        let mut fixed = vec![None; 12];
        (fixed[1], fixed[4], fixed[5]) = (Some(3), Some(2), Some(8));
        let l = limits(&fixed, ENDING).unwrap();
        let [yes, no] = [true, false];
        assert_eq!(open(&l), [yes, no, yes, yes, no, no, yes, no, no, no, no, no]);
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let said = |length, min_length| match limits(&[None; 6], Ending { length, min_length, ..ENDING }) {
            Err(e) => e.to_string(),
            Ok(_) => String::new(),
        };
        assert_eq!((said(Some(6), 6), said(None, 6)), (String::new(), String::new()));
        assert!(said(None, 7).contains("at least 7"), "{}", said(None, 7));
        assert!(said(Some(3), 4).contains("not both"), "{}", said(Some(3), 4));
        assert!(said(Some(0), 1).contains("length of 0") && said(Some(7), 1).contains("length of 7"));
    }
}
