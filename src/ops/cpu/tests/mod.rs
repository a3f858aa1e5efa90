//! Every op of the CPU against its scalar reference, and the promises on bits and on changing in place.
mod attention;
mod logits;
mod matmul;
mod moves;
mod tensors;

/// Fails unless `got` is within `tolerance` of `want`, in units of the greatest magnitude of `want`.
fn close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(1e-30_f32, |max, v| max.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * largest, "{what} [{i}]: {got}, expected {want} (largest {largest})");
    }
}
