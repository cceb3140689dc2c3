//! Flags of samplers that mean nothing for a model are refused: no answer should seem to heed them.

use crate::failure::Failure;

/// A flag that is used though it has no meaning.
pub fn meaningless(flag: &str, why: &str) -> Failure {
    Failure::input(format!("{flag} has no meaning here: {why}"))
}
