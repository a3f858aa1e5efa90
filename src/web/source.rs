//! A byte source implemented in JavaScript: HTTP ranges, Blobs and files look alike from here.
use wasm_bindgen::prelude::*;

use super::error;
use crate::Result;
use crate::model::ByteSource;
use crate::model::source::short_read;

#[wasm_bindgen]
extern "C" {
    /// `{ len: number, read(offset, length): Promise<Uint8Array> }`
    pub type JsSource;

    #[wasm_bindgen(method, getter)]
    fn len(this: &JsSource) -> f64;

    #[wasm_bindgen(method, catch)]
    async fn read(this: &JsSource, offset: f64, length: f64) -> Result<JsValue, JsValue>;
}

/// [`JsSource`] with its length fixed at the start.
pub struct WebSource {
    source: JsSource,
    len: u64,
}

impl WebSource {
    /// Wraps a source; a length that is no whole number counts as 0, which the parser refuses.
    pub fn new(source: JsSource) -> Self {
        let len = source.len();
        let whole = (0.0..9_007_199_254_740_992.0).contains(&len);
        Self { source, len: if whole { len as u64 } else { 0 } }
    }
}

impl ByteSource for WebSource {
    fn len(&self) -> u64 {
        self.len
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(short_read(offset, len, self.len));
        }
        let value = self.source.read(offset as f64, len as f64).await.map_err(|thrown| error::from_source(&thrown))?;
        let bytes = value.dyn_into::<js_sys::Uint8Array>().map_err(|other| error::from_source(&other))?;
        if bytes.length() as usize != len {
            return Err(short_read(offset, len, self.len).with("got", bytes.length()));
        }
        Ok(bytes.to_vec())
    }
}
