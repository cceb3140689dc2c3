//! What several commands need: their common flags, how images and sequences are opened, what is drawn and scored.

pub mod clip_scores;
pub mod html;
pub mod image_input;
pub mod model_args;
pub mod names;
pub mod numbers;
pub mod own_data;
pub mod predictions;
pub mod preview;
pub mod ranks;
pub mod recipe;
pub mod sampling_flags;
pub mod sequence_args;
