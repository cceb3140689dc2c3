//! What there is: data, settings, tokenizers, devices, and whether their ops are right.

pub mod config;
pub mod data;
pub mod devices;
pub mod explain;
pub mod selftest;
pub mod tokenizer;
