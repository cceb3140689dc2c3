//! `tweedie bench`: how fast things are.

pub mod data;
pub mod form;
pub mod growth;
pub mod model;
pub mod ops;
pub mod serve;
