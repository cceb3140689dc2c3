//! What a trained model says: of images in classes or words, in text, and step by step.

pub mod caption;
pub mod classify;
pub mod generate;
pub mod trace;
mod writing;
