//! A model: `ModelSpec`, the loader over a `ByteSource`, layers. Names ops, never a backend.
