//! A model: `ModelSpec`, the loader over a `ByteSource`, layers. Names ops, never a backend.
//!
//! `spec` reads metadata, `source` is where bytes come from, `header` reads the headers of a model's files, `survey` says what
//! they hold and what it needs in memory, `kernels` which kernels it will use, `loader` brings tensors to the device, `linear`
//! holds weights, `transformer` runs the forward, `executor` fits it under the engine, `settings` sizes it, `open` puts all together.

pub mod executor;
pub mod header;
pub mod kernels;
pub mod linear;
pub mod loader;
pub mod open;
pub mod settings;
pub mod source;
pub mod spec;
pub mod survey;
pub mod transformer;

pub use loader::load;
pub use source::ByteSource;
pub use spec::ModelSpec;
pub use transformer::Transformer;
