//! The headers of a model's files, read as far as they go and joined to one. Reads no tensor data on purpose.
use crate::gguf::{Gguf, ParseStep};
use crate::model::source::ByteSource;
use crate::{Error, Result};

/// First read of a header.
const FIRST_READ: u64 = 1 << 20;

/// Reads and parses the header of every file of the source; offsets in the result count from the source's start.
///
/// # Errors
/// Those of the source, of [`Gguf::parse`] and of [`Gguf::join`].
pub async fn read_header(source: &impl ByteSource) -> Result<Gguf> {
    let mut headers = Vec::new();
    let mut start = 0;
    for file_bytes in source.files() {
        headers.push((read_one(source, start, file_bytes).await?, start));
        start += file_bytes;
    }
    Gguf::join(headers)
}

async fn read_one(source: &impl ByteSource, start: u64, file_bytes: u64) -> Result<Gguf> {
    let mut prefix = Vec::new();
    let mut want = FIRST_READ.min(file_bytes);
    loop {
        let have = prefix.len() as u64;
        let more = usize::try_from(want - have).map_err(|_| header_too_large(want))?;
        prefix.extend(source.read(start + have, more).await?);
        match Gguf::parse(&prefix, file_bytes)? {
            ParseStep::Done(gguf) => return Ok(gguf),
            // Doubling keeps the work linear in the header's length.
            ParseStep::NeedMore { at_least } => want = at_least.max(want.saturating_mul(2)).min(file_bytes),
        }
    }
}

fn header_too_large(bytes: u64) -> Error {
    Error::new("gguf.header_too_large", "the file's header does not fit in memory").with("bytes", bytes)
}
