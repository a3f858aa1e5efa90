//! What a GPU device reports about itself: errors that nobody awaited, allocations that failed. CubeCL's own handler panics on
//! these, and a panic ends a wasm instance; ours keeps the first ones for whoever uses the device then.
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::wgpu::wgpu;

use crate::{Error, Result};

/// Errors that are kept; of more, only how many there were.
const KEPT: usize = 16;

/// What a device reported so far.
#[derive(Debug, Default)]
struct Reported {
    first: Vec<Error>,
    count: usize,
}

/// The errors that a device reports outside of any scope, as one user of the device sees them: those since it began. Several
/// engines may share a device; an error is everyone's who used it then, and nobody's who comes later.
#[derive(Debug, Clone, Default)]
pub(super) struct Trouble {
    reported: Arc<Mutex<Reported>>,
    since: usize,
}

impl Trouble {
    /// Takes over the uncaptured errors of a device.
    pub fn watch(device: &wgpu::Device) -> Self {
        let trouble = Self::default();
        let reported = Arc::clone(&trouble.reported);
        device.on_uncaptured_error(Arc::new(move |error| note(&reported, &error)));
        trouble
    }

    /// From here on: what was reported before is not heard again.
    pub fn begin(&mut self) {
        self.since = lock(&self.reported).count;
    }

    /// # Errors
    /// `memory.gpu`, `device.failed`: the first that was reported since the beginning.
    pub fn check(&self) -> Result<()> {
        let reported = lock(&self.reported);
        if reported.count == self.since {
            return Ok(());
        }
        let error = reported.first.get(self.since).or(reported.first.last());
        error.map_or(Ok(()), |error| Err(error.clone()))
    }
}

fn lock(reported: &Mutex<Reported>) -> MutexGuard<'_, Reported> {
    reported.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(reported: &Mutex<Reported>, error: &wgpu::Error) {
    let mut reported = lock(reported);
    reported.count += 1;
    if reported.first.len() < KEPT {
        reported.first.push(typed(error));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> wgpu::Error {
        wgpu::Error::Validation { source: "planted".into(), description: "planted".to_owned() }
    }

    #[test]
    fn an_error_is_heard_by_those_who_used_the_device_and_by_nobody_later() {
        let mut first = Trouble::default();
        let second = first.clone();
        assert!(first.check().is_ok());
        note(&first.reported, &refused());
        assert_eq!(first.check().unwrap_err().code, "device.failed");
        assert_eq!(second.check().unwrap_err().code, "device.failed");
        first.begin();
        assert!(first.check().is_ok());
        assert!(second.check().is_err(), "what another one forgets is still this one's");
        for _ in 0..3 * KEPT {
            note(&first.reported, &refused());
        }
        assert!(first.check().is_err());
        first.begin();
        assert!(first.check().is_ok());
        note(&first.reported, &wgpu::Error::OutOfMemory { source: "planted".into() });
        assert!(first.check().is_err(), "also when more were reported than are kept");
        assert_eq!(lock(&first.reported).first.len(), KEPT);
    }
}
