//! How good a model or a file of captions is: `tweedie eval` (of classes and of texts) and `tweedie score`.

pub mod eval;
pub mod score;
mod texts;
