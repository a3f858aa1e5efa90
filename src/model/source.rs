//! Where a model's bytes come from: a length and reads at 64-bit offsets. Knows nothing of GGUF.
use crate::{Error, Result};

/// A file that is read piece by piece: HTTP ranges, a Blob, a stored file, memory.
#[allow(async_fn_in_trait, reason = "one thread: futures need not be Send")]
pub trait ByteSource {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether there is nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lengths of the files that lie one after another in this source: one, or the parts of a split model.
    fn files(&self) -> Vec<u64> {
        vec![self.len()]
    }

    /// Reads exactly `len` bytes at `offset`.
    ///
    /// # Errors
    /// Whatever the source reports; a short read is `source.short_read`.
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>>;
}

/// Bytes already in memory (tests, small models).
impl ByteSource for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let range = usize::try_from(offset).ok().and_then(|at| Some(at..at.checked_add(len)?));
        range.and_then(|range| self.get(range)).map(<[u8]>::to_vec).ok_or_else(|| short_read(offset, len, self.len()))
    }
}

/// A file of the host's file system.
#[cfg(not(target_family = "wasm"))]
#[derive(Debug)]
pub struct FileSource {
    file: std::sync::Mutex<std::fs::File>,
    len: u64,
}

#[cfg(not(target_family = "wasm"))]
impl FileSource {
    /// Opens `path`.
    ///
    /// # Errors
    /// `source.open` when it cannot be opened.
    pub fn open(path: &std::path::Path) -> Result<Self> {
        let fail = |cause: std::io::Error| {
            Error::new("source.open", format!("{} cannot be opened: {cause}", path.display()))
                .with("path", path.display().to_string())
        };
        let file = std::fs::File::open(path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        Ok(Self { file: std::sync::Mutex::new(file), len })
    }
}

#[cfg(not(target_family = "wasm"))]
impl ByteSource for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        use std::io::{Read, Seek, SeekFrom};
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(short_read(offset, len, self.len));
        }
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut bytes = vec![0; len];
        file.seek(SeekFrom::Start(offset))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|cause| short_read(offset, len, self.len).with("cause", cause.to_string()))?;
        Ok(bytes)
    }
}

/// The error of a read past the end.
pub fn short_read(offset: u64, len: usize, total: u64) -> Error {
    Error::new("source.short_read", format!("{len} bytes at offset {offset} were wanted, the source has {total}"))
        .with("offset", offset)
        .with("expected", len)
        .with("total", total)
}
