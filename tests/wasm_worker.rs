//! The wasm surface in a dedicated Worker, on the CPU and on real WebGPU.
#![cfg(target_family = "wasm")]
mod wasm;

use wasm::readback::readbacks_are_right;
use wasm::{errors_are_plain_objects, greedy_follows_the_reference, has_webgpu, is_worker};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_dedicated_worker);

#[wasm_bindgen_test]
fn it_runs_where_it_says() {
    assert!(is_worker());
    assert!(has_webgpu());
}

#[wasm_bindgen_test]
async fn greedy_on_the_cpu() {
    greedy_follows_the_reference("cpu").await;
}

#[wasm_bindgen_test]
async fn greedy_on_webgpu() {
    greedy_follows_the_reference("webgpu").await;
}

#[wasm_bindgen_test]
async fn a_thousand_readbacks_on_webgpu() {
    readbacks_are_right(1000).await;
}

#[wasm_bindgen_test]
async fn errors() {
    errors_are_plain_objects().await;
}
