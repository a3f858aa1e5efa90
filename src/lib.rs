//! fireside: language models inside a browser tab.
//!
//! One room a folder; which rooms a room may import is a table in tests/tidy.rs, and data walks one way. The pure rooms know
//! nothing of burn, wgpu, JavaScript, clocks or async, and build alone when neither `webgpu` nor `cpu` is enabled.
#![deny(unsafe_code)]
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
