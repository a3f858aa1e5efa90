//! A byte source implemented in JavaScript: HTTP ranges, Blobs and files look alike from here.
use wasm_bindgen::prelude::*;

use super::error;
use crate::Result;
use crate::model::ByteSource;
use crate::model::source::short_read;

#[wasm_bindgen]
extern "C" {
    /// `{ len: number, files?: number[], read(offset, length): Promise<Uint8Array> }`
    pub type JsSource;

    #[wasm_bindgen(method, getter)]
    fn len(this: &JsSource) -> f64;

    /// Lengths of the files that lie one after another; undefined means one file.
    #[wasm_bindgen(method, getter)]
    fn files(this: &JsSource) -> JsValue;

    #[wasm_bindgen(method, catch)]
    async fn read(this: &JsSource, offset: f64, length: f64) -> Result<JsValue, JsValue>;
}

/// [`JsSource`] with its length fixed at the start.
pub struct WebSource {
    source: JsSource,
    len: u64,
    files: Vec<u64>,
}

impl WebSource {
    /// Wraps a source; a length that is no whole number counts as 0, which the parser refuses.
    pub fn new(source: JsSource) -> Self {
        let len = whole(source.len());
        let files = source.files().dyn_into::<js_sys::Array>().ok();
        let files = files.map(|list| list.iter().map(|file| whole(file.as_f64().unwrap_or(0.0))).collect::<Vec<_>>());
        // Files that do not make up the source are no files of it: the parser then sees one, and says what it is.
        let files = files.filter(|files| files.iter().sum::<u64>() == len).unwrap_or_else(|| vec![len]);
        Self { source, len, files }
    }
}

fn whole(bytes: f64) -> u64 {
    if (0.0..9_007_199_254_740_992.0).contains(&bytes) { bytes as u64 } else { 0 }
}

impl ByteSource for WebSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn files(&self) -> Vec<u64> {
        self.files.clone()
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
