//! One file per command.

pub mod bench_data;
pub mod bench_growth;
pub mod bench_model;
pub mod bench_ops;
pub mod caption;
pub mod classify;
pub mod clip_scores;
pub mod config_show;
pub mod data_inspect;
pub mod devices;
pub mod eval;
pub mod eval_texts;
pub mod generate;
pub mod image_input;
pub mod looks;
pub mod model_args;
pub mod quickstart;
pub mod quickstart_caption;
pub mod reproduce;
pub mod score;
pub mod selftest;
pub mod sequence_args;
pub mod tokenizer;
pub mod trace;
pub mod train;
pub mod writing;
