//! One file per command.

pub mod bench_ops;
pub mod devices;
pub mod selftest;
