//! The commands, grouped by what they are for.

pub mod bench;
pub mod export;
pub mod init;
pub mod inspect;
pub mod measure;
pub mod predict;
pub mod quickstart;
pub mod reproduce;
pub mod runs;
pub mod serve;
pub mod train;
