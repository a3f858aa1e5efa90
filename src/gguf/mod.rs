//! GGUF files: bounded reader, metadata, tensor table, extents. Hostile input ends here; tensor data is not read here.
//!
//! A header is read from a prefix of the file that grows while the file arrives. Nothing is allocated before its bytes
//! are at hand, so that a file cannot ask for more memory than a small multiple of what it sent. What a model makes of
//! metadata (missing or absurd sizes) is the model's to judge.
mod cursor;
mod metadata;
mod split;
mod tensor;
#[cfg(test)]
mod tests;
mod types;
mod value;

pub use cursor::MAX_HEADER_BYTES;
pub use metadata::{MAX_KEYS, Metadata};
pub use tensor::{MAX_DIMS, MAX_TENSORS, TensorInfo};
pub use types::GgmlType;
pub use value::{Array, MAX_NESTING, StrArray, Value};

use crate::{Error, Result};
use cursor::{Cursor, Stop};

/// Alignment of tensor data where the file names none.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// A parsed header.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// Format version, 2 or 3.
    pub version: u32,
    /// The key/value pairs.
    pub metadata: Metadata,
    /// All tensors in the order of their data in the file.
    pub tensors: Vec<TensorInfo>,
    /// First byte of the tensor data.
    pub data_offset: u64,
    /// Every tensor's data starts at a multiple of this from `data_offset`.
    pub alignment: u64,
    /// Indices into `tensors` in the order of the names.
    by_name: Vec<u32>,
}

/// What a prefix of a file is good for.
#[derive(Debug, Clone, PartialEq)]
pub enum ParseStep {
    /// The header goes on: come back with the file's first `at_least` bytes. At least twice the prefix where the file
    /// is that long, so that reading again each time stays linear.
    NeedMore {
        /// Bytes from the start of the file, more than were given, no more than the file has.
        at_least: u64,
    },
    /// The header is complete.
    Done(Gguf),
}

impl Gguf {
    /// Reads the header from the start of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// One of the `gguf.*` codes: the file is not GGUF, cut off, or corrupt. An error is final, more bytes do not help.
    pub fn parse(prefix: &[u8], file_bytes: u64) -> Result<ParseStep> {
        match read(&mut Cursor::new(prefix, file_bytes), file_bytes) {
            Ok(gguf) => Ok(ParseStep::Done(gguf)),
            Err(Stop::Bad(error)) => Err(error),
            Err(Stop::More(end)) => {
                let twice = (prefix.len() as u64).saturating_mul(2).min(MAX_HEADER_BYTES).min(file_bytes);
                Ok(ParseStep::NeedMore { at_least: end.max(twice) })
            }
        }
    }

    /// Reads the header of a file that is wholly in memory.
    ///
    /// # Errors
    /// As [`Gguf::parse`].
    pub fn from_bytes(file: &[u8]) -> Result<Self> {
        let file_bytes = file.len() as u64;
        match Self::parse(file, file_bytes)? {
            ParseStep::Done(gguf) => Ok(gguf),
            // Unreachable: with the whole file at hand what is missing is past its end, which is an error.
            ParseStep::NeedMore { at_least } => Err(Error::new("gguf.truncated", "The file is cut off.")
                .with("expected_bytes", at_least)
                .with("file_bytes", file_bytes)),
        }
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = |index: u32| self.tensors.get(index as usize);
        let found = self.by_name.binary_search_by(|&i| at(i).map_or("", |t| t.name.as_str()).cmp(name)).ok()?;
        at(self.by_name[found])
    }
}

fn read(cursor: &mut Cursor<'_>, file_bytes: u64) -> Result<Gguf, Stop> {
    let version = read_version(cursor)?;
    let num_tensors = cursor.u64("number of tensors")?;
    let num_keys = cursor.u64("number of metadata pairs")?;
    tensor::check_count(num_tensors)?;
    let metadata = Metadata::read(cursor, num_keys)?;
    let alignment = read_alignment(&metadata)?;
    let mut tensors = tensor::read_entries(cursor, num_tensors)?;
    // A header ends far below 2^63 and the alignment is at most 2^31.
    let data_offset = cursor.pos().next_multiple_of(alignment);
    tensor::place(&mut tensors, data_offset, alignment, file_bytes)?;
    tensors.sort_by_key(|tensor| tensor.offset);
    let by_name = index_names(&tensors)?;
    tensor::check_apart(&tensors)?;
    Ok(Gguf { version, metadata, tensors, data_offset, alignment, by_name })
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, Stop> {
    const MAGIC: &[u8; 4] = b"GGUF";
    let magic: [u8; 4] = cursor.array("magic bytes")?;
    if &magic == b"FUGG" {
        return Err(big_endian().into());
    }
    if &magic != MAGIC {
        let got = magic.escape_ascii().to_string();
        let message = format!("The file starts with '{got}', not 'GGUF': it is not a GGUF file.");
        return Err(Error::new("gguf.bad_magic", message).with("expected", "GGUF").with("got", got).into());
    }
    match cursor.u32("version")? {
        version @ 2..=3 => Ok(version),
        // A small version number with its bytes swapped.
        version if version != 0 && version & 0xffff == 0 => Err(big_endian().into()),
        version => {
            let message = format!("The file is of GGUF version {version}; versions 2 and 3 are read.");
            Err(Error::new("gguf.unsupported_version", message).with("expected", "2 or 3").with("got", version).into())
        }
    }
}

fn big_endian() -> Error {
    Error::new("gguf.big_endian", "The file was written for big-endian machines; only little-endian GGUF is read.")
}

fn read_alignment(metadata: &Metadata) -> Result<u64> {
    let key = "general.alignment";
    let alignment = metadata.opt_u32(key)?.map_or(DEFAULT_ALIGNMENT, u64::from);
    if !alignment.is_power_of_two() {
        let message = format!("The file's alignment is {alignment}; a power of two was expected.");
        return Err(Error::new("gguf.bad_alignment", message).with("key", key).with("got", alignment));
    }
    Ok(alignment)
}

fn index_names(tensors: &[TensorInfo]) -> Result<Vec<u32>> {
    let name = |index: u32| tensors[index as usize].name.as_str();
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    by_name.sort_unstable_by(|&a, &b| name(a).cmp(name(b)));
    if let Some(pair) = by_name.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        let name = name(pair[0]);
        let message = format!("Two tensors are named '{name}'.");
        return Err(Error::new("gguf.duplicate_tensor", message).with("tensor", name));
    }
    Ok(by_name)
}
