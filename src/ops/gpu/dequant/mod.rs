//! Dequantization on the device: what a part's scales are, which words a step loads, and the quads in them.
//!
//! Every product of scales and integers here is exact in f32 or rounds once, so a fused multiply-add changes nothing.
mod scales;
mod values;

pub use scales::{Head, part_head};
pub use values::{Words, part_words, quad, single};
