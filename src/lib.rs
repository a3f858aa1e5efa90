//! fireside: language models inside a browser tab.
//!
//! One room a folder; which rooms a room may import is a table in tests/tidy.rs, and data walks one way. The pure rooms know
//! nothing of burn, wgpu, JavaScript, clocks or async, and build alone when neither `webgpu` nor `cpu` is enabled.
//!
//! Unsafe code is denied but for the spots that allow it by name and reason; docs/security.md lists them, and tests/tidy.rs
//! holds the list.
#![deny(unsafe_code)]
#![deny(clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn)]
#![warn(missing_docs)]

pub mod error;
pub mod ids;

pub mod gguf;
pub mod quant;
pub mod tokenizer;

pub mod chat;
pub mod sampling;

pub mod kv;
pub mod sequence;

pub mod scheduler;

#[cfg(any(feature = "webgpu", feature = "cpu"))]
pub mod backend;
#[cfg(any(feature = "webgpu", feature = "cpu"))]
pub mod model;
#[cfg(any(feature = "webgpu", feature = "cpu"))]
pub mod ops;

pub mod engine;
#[cfg(all(feature = "web", target_family = "wasm"))]
pub mod web;

pub use error::{Error, Result};
