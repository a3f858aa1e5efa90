//! The `#[wasm_bindgen]` surface: byte sources, commands, errors to JavaScript. Decides nothing.
