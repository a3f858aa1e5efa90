//! What a GPU device reports about itself: errors that nobody awaited, allocations that failed. CubeCL's own handler panics on
//! these, and a panic ends a wasm instance; ours keeps the first one for whoever asks next.
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::wgpu::wgpu;

use crate::{Error, Result};

/// The first error that a device reported outside of any scope.
#[derive(Debug, Clone, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<Error>>>);

impl Trouble {
    /// Takes over the uncaptured errors of a device.
    pub fn watch(device: &wgpu::Device) -> Self {
        let trouble = Self::default();
        let kept = trouble.clone();
        device.on_uncaptured_error(Arc::new(move |error| kept.note(&error)));
        trouble
    }

    fn note(&self, error: &wgpu::Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| typed(error));
    }

    /// # Errors
    /// `memory.gpu`, `device.failed`: what was reported.
    pub fn check(&self) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }
}

fn typed(error: &wgpu::Error) -> Error {
    let typed = match error {
        wgpu::Error::OutOfMemory { .. } => {
            Error::new("memory.gpu", "the GPU has no memory left for this model and its KV cache")
        }
        wgpu::Error::Validation { .. } | wgpu::Error::Internal { .. } => {
            Error::new("device.failed", "the GPU device refused a command: what it computed since cannot be used")
        }
    };
    typed.with("cause", error.to_string())
}

type Popped = Pin<Box<dyn Future<Output = Option<wgpu::Error>>>>;

/// Allocations whose outcome the device tells later. WebGPU does not say how much memory there is: trying is how one knows.
#[derive(Default)]
pub struct Allocations {
    pending: Vec<Popped>,
}

impl Allocations {
    /// Runs work that allocates and must not wait, under error scopes of `device`.
    pub(super) fn scoped<T>(&mut self, device: &wgpu::Device, work: impl FnOnce() -> T) -> T {
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let result = work();
        self.pending.push(Box::pin(memory.pop()));
        self.pending.push(Box::pin(validation.pop()));
        result
    }

    /// # Errors
    /// `memory.gpu`, `device.failed`: the first that any of the scopes caught.
    pub(super) async fn settle(self) -> Result<()> {
        let mut first = None;
        for popped in self.pending {
            first = first.or(popped.await);
        }
        first.map_or(Ok(()), |error| Err(typed(&error)))
    }
}
