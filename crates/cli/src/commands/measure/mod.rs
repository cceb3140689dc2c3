//! How good a model or a file of captions is: `tweedie eval` (of classes and of texts) and `tweedie score`.

mod answers;
mod curve;
pub mod eval;
mod mistakes;
pub mod score;
mod texts;
