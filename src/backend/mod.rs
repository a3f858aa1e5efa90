//! Devices: request, capabilities, upload, readback, memory figures, tensor aliases. Names no model and no op.
//!
//! With `ops/` this is the only room that names burn: what leaves it is `Backend`, `Floats` and `Words`.
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::{Error, Result};

mod memory;
#[cfg(feature = "webgpu")]
mod trouble;
#[cfg(feature = "webgpu")]
mod webgpu;

pub use memory::Allocations;

/// A flat f32 tensor; its shape is known by whoever made it.
pub type Floats = Tensor<1>;
/// A flat tensor of u32 words: ids, packed weights, index arrays.
pub type Words = Tensor<1, Int>;

/// Which of the two implementations of `ops` a tensor lives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// WebGPU in a browser, wgpu natively.
    Webgpu,
    /// SIMD128 in wasm, what the machine has natively.
    Cpu,
}

/// What the adapter says of itself (`EngineInfo.adapter`).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Adapter {
    /// Vendor name, or its PCI number in hex.
    pub vendor: String,
    /// Device or architecture name.
    pub architecture: String,
    /// Enabled optional features.
    pub features: Vec<String>,
    /// A software adapter: kernels without barriers are used.
    pub fallback: bool,
}

/// Ends the process's GPU device; nobody may use it any more, and the process can make no other. Whether there was one.
pub fn release_device() -> bool {
    #[cfg(feature = "webgpu")]
    return webgpu::release();
    #[cfg(not(feature = "webgpu"))]
    false
}

/// A device and what it can do. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Backend {
    device: Device,
    kind: BackendKind,
    adapter: Option<Adapter>,
    max_binding_bytes: u64,
    #[cfg(feature = "webgpu")]
    gpu: Option<webgpu::Gpu>,
}

impl Backend {
    /// The CPU backend; always there when compiled in.
    ///
    /// # Errors
    /// `load.backend_unavailable` when the crate was built without it.
    pub fn cpu() -> Result<Self> {
        #[cfg(feature = "cpu")]
        return Ok(Self {
            device: Device::flex(),
            kind: BackendKind::Cpu,
            adapter: None,
            // wasm32 cannot hold more, and slices are limited to isize::MAX.
            max_binding_bytes: i32::MAX as u64,
            #[cfg(feature = "webgpu")]
            gpu: None,
        });
        #[cfg(not(feature = "cpu"))]
        Err(Self::unavailable("cpu", "this build has no CPU backend"))
    }

    /// The WebGPU backend on the browser's (natively: the first) adapter.
    ///
    /// # Errors
    /// `load.backend_unavailable` when there is no usable adapter.
    #[allow(clippy::unused_async, reason = "async only when the backend is compiled in")]
    pub async fn webgpu() -> Result<Self> {
        #[cfg(feature = "webgpu")]
        return webgpu::request().await.map(|mut backend| {
            backend.begin();
            backend
        });
        #[cfg(not(feature = "webgpu"))]
        Err(Self::unavailable("webgpu", "this build has no WebGPU backend"))
    }

    pub(crate) fn unavailable(backend: &str, reason: &str) -> Error {
        Error::new("load.backend_unavailable", format!("the {backend} backend cannot be used: {reason}"))
            .with("backend", backend)
            .with("reason", reason)
    }

    /// Which implementation this is.
    pub fn kind(&self) -> BackendKind {
        self.kind
    }

    /// The adapter; none on the CPU.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// Whether kernels without barriers are the quick ones here.
    pub fn is_software(&self) -> bool {
        self.adapter.as_ref().is_none_or(|a| a.fallback)
    }

    /// Largest buffer a kernel may bind, in bytes.
    pub fn max_binding_bytes(&self) -> u64 {
        self.max_binding_bytes
    }

    /// Uploads f32 values.
    pub fn floats(&self, values: Vec<f32>) -> Floats {
        let len = values.len();
        Tensor::from_data(TensorData::new(values, [len]), &self.device)
    }

    /// Uploads u32 words.
    pub fn words(&self, words: Vec<u32>) -> Words {
        let len = words.len();
        Tensor::from_data(TensorData::new(words, [len]), (&self.device, DType::U32))
    }

    /// f32 values with unspecified content.
    pub fn empty_floats(&self, len: usize) -> Floats {
        Tensor::empty([len], &self.device)
    }

    /// u32 words with unspecified content.
    pub fn empty_words(&self, len: usize) -> Words {
        Tensor::empty([len], (&self.device, DType::U32))
    }

    /// Reads f32 values back; on the CPU without a copy when `values` is the only owner.
    ///
    /// # Errors
    /// `device.lost` when the device is gone, `device.readback` when it gave something else than was asked for.
    pub async fn read_floats(&self, values: Floats) -> Result<Vec<f32>> {
        let data = values.into_data_async().await.map_err(|e| self.gone(e))?;
        data.try_to_vec().map_err(readback)
    }

    /// Reads u32 words back.
    ///
    /// # Errors
    /// As [`Backend::read_floats`].
    pub async fn read_words(&self, words: Words) -> Result<Vec<u32>> {
        let data = words.into_data_async().await.map_err(|e| self.gone(e))?;
        data.try_to_vec().map_err(readback)
    }

    /// A read fails on a GPU when its device was lost, whatever the browser says of the buffer.
    fn gone(&self, cause: impl std::fmt::Debug) -> Error {
        match self.kind {
            BackendKind::Cpu => readback(cause),
            BackendKind::Webgpu => {
                Error::new("device.lost", "the GPU device was lost").with("cause", format!("{cause:?}"))
            }
        }
    }

    /// From here on this handle is a new user of the device: what the device reported before is not heard again.
    pub fn begin(&mut self) {
        #[cfg(feature = "webgpu")]
        if let Some(gpu) = &mut self.gpu {
            gpu.trouble.begin();
        }
    }

    /// Whether everything that the device was told to do until the last read was done: errors that come without being awaited
    /// are kept, and the results that followed them are not to be used.
    ///
    /// # Errors
    /// `memory.gpu`, `device.failed`.
    pub fn check(&self) -> Result<()> {
        #[cfg(feature = "webgpu")]
        if let Some(gpu) = &self.gpu {
            return gpu.trouble.check();
        }
        Ok(())
    }

    /// Bytes that the device's pools hold now; 0 on the CPU, where linear memory is the measure.
    pub fn pool_bytes(&self) -> u64 {
        match self.kind {
            BackendKind::Cpu => 0,
            BackendKind::Webgpu => self.device.memory_pool_usage().map_or(0, |usage| usage.bytes_reserved),
        }
    }
}

fn readback(cause: impl std::fmt::Debug) -> Error {
    Error::new("device.readback", "what was read back is not what was asked for").with("cause", format!("{cause:?}"))
}
