//! Memory that a model needs, asked for before its weights are fetched: what cannot be had is an error with both numbers.
use super::{Backend, BackendKind};
use crate::{Error, Result};

#[cfg(feature = "webgpu")]
pub use super::trouble::Allocations;

/// Allocations whose outcome a device tells later; without a GPU there are none.
#[cfg(not(feature = "webgpu"))]
#[derive(Default)]
pub struct Allocations;

/// What one attempt asks for: more in one piece is refused by the standard library on 32 bits.
#[cfg(target_arch = "wasm32")]
const PIECE_BYTES: u64 = 512 << 20;

impl Backend {
    /// Runs work that allocates on the device and does not wait; what the device says of it comes with [`Backend::settle`].
    pub fn allocate<T>(&self, _allocations: &mut Allocations, work: impl FnOnce() -> T) -> T {
        #[cfg(feature = "webgpu")]
        if let Some(gpu) = &self.gpu {
            return _allocations.scoped(&gpu.device, work);
        }
        work()
    }

    /// Waits until the device has said whether everything allocated is there.
    ///
    /// # Errors
    /// `memory.gpu`, `device.failed`, `device.lost`.
    #[allow(clippy::unused_async, reason = "async only when the backend is compiled in")]
    pub async fn settle(&self, _allocations: Allocations) -> Result<()> {
        #[cfg(feature = "webgpu")]
        if self.gpu.is_some() {
            _allocations.settle().await?;
            // A read comes after whatever was reported without a scope.
            self.read_words(self.words(vec![0])).await?;
        }
        self.check()
    }

    /// Gives back what the pools hold and nobody uses.
    pub fn free_unused(&self) {
        if self.kind == BackendKind::Webgpu {
            self.device.memory_cleanup();
        }
    }

    /// Makes sure that linear memory can hold so many bytes more; on a GPU and natively it is not the bound.
    ///
    /// # Errors
    /// `memory.wasm` with the bytes wanted and those that were there.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        #[cfg(target_arch = "wasm32")]
        if self.kind == BackendKind::Cpu {
            return reserve_linear(bytes);
        }
        let _ = bytes;
        Ok(())
    }
}

/// Grows linear memory by allocating and freeing: the allocator keeps what it got, in one piece.
#[cfg(target_arch = "wasm32")]
fn reserve_linear(bytes: u64) -> Result<()> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(PIECE_BYTES);
        let mut room = Vec::new();
        if room.try_reserve_exact(piece as usize).is_err() {
            return Err(out_of_linear_memory(bytes, bytes - left));
        }
        pieces.push(room);
        left -= piece;
    }
    Ok(())
}

/// `memory.wasm`.
#[allow(dead_code, reason = "only wasm32 has linear memory")]
fn out_of_linear_memory(wanted: u64, had: u64) -> Error {
    Error::new("memory.wasm", "linear memory cannot grow to hold this model and its KV cache")
        .with("expected", had)
        .with("got", wanted)
}
