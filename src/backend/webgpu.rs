//! Asking for a GPU device through burn, once a process: the runtime cannot be registered twice for one adapter.
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use burn::tensor::wgpu::{MemoryConfiguration, WgpuSetup, wgpu};
use futures_util::lock::Mutex as AsyncMutex;

use super::trouble::Trouble;
use super::{Adapter, Backend, BackendKind};
use crate::Result;

static DEVICE: Mutex<Option<Backend>> = Mutex::new(None);
/// Held while a device is made: two threads that ask for adapters at once make the native GL driver fail, and the second device would be
/// refused in any case.
static MAKING: AsyncMutex<()> = AsyncMutex::new(());

/// The device itself, beside burn's handle of it.
#[derive(Debug, Clone)]
pub(super) struct Gpu {
    pub device: wgpu::Device,
    pub trouble: Trouble,
}

/// The process's GPU device, made at the first call.
pub(super) async fn request() -> Result<Backend> {
    let _making = MAKING.lock().await;
    if let Some(backend) = DEVICE.lock().unwrap_or_else(PoisonError::into_inner).clone() {
        return Ok(backend);
    }
    #[cfg(target_family = "wasm")]
    constructors::run();
    // One buffer a tensor: native pools would place several in one buffer, which WGSL bindings may not share read-write.
    let options = Device::wgpu_options().memory_config(MemoryConfiguration::ExclusivePages);
    let made = options.init_with_setup_async().await;
    let (device, setup) = made.map_err(|error| Backend::unavailable("webgpu", &error.to_string()))?;
    let backend = describe(device, &setup);
    *DEVICE.lock().unwrap_or_else(PoisonError::into_inner) = Some(backend.clone());
    Ok(backend)
}

/// Destroys the process's device and with it all of its buffers, which a browser otherwise keeps until its garbage collector comes
/// by. There is no second one in a process. Whether there was one.
pub(super) fn release() -> bool {
    let held = DEVICE.lock().unwrap_or_else(PoisonError::into_inner).take();
    held.and_then(|backend| backend.gpu).map(|gpu| gpu.device.destroy()).is_some()
}

fn describe(device: Device, setup: &WgpuSetup) -> Backend {
    let info = setup.adapter.get_info();
    let limits = setup.device.limits();
    let software = info.device_type == wgpu::DeviceType::Cpu || is_software_name(&info.name);
    let adapter = Adapter {
        vendor: if info.vendor == 0 { info.driver.clone() } else { format!("0x{:04x}", info.vendor) },
        architecture: info.name,
        features: setup.device.features().iter_names().map(|(name, _)| name.to_owned()).collect(),
        fallback: software,
    };
    let max_binding_bytes = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let gpu = Gpu { trouble: Trouble::watch(&setup.device), device: setup.device.clone() };
    Backend { device, kind: BackendKind::Webgpu, adapter: Some(adapter), max_binding_bytes, gpu: Some(gpu) }
}

/// Browsers do not tell an adapter's type, so names of the known software adapters are compared.
fn is_software_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["swiftshader", "llvmpipe", "lavapipe", "softpipe", "basic render"].iter().any(|known| name.contains(known))
}

#[cfg(target_family = "wasm")]
mod constructors {
    //! CubeCL registers its IR through static constructors. Unless something refers to `__wasm_call_ctors`, wasm-ld wraps
    //! every export in a call of all of them (milliseconds a call); then someone must call it, once.
    #![allow(unsafe_code, reason = "the linker's own constructor entry, called once before any CubeCL use")]
    // SAFETY: the signature is the linker's: no arguments, nothing returned.
    unsafe extern "C" {
        fn __wasm_call_ctors();
    }

    pub(super) fn run() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: the symbol is made by wasm-ld for every module and takes no arguments; `Once` keeps it to one run.
        ONCE.call_once(|| unsafe { __wasm_call_ctors() });
    }
}
