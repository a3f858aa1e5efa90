//! Metadata values: reading them within bounds, and keeping them in no more memory than the file gives them.
use super::cursor::{Cursor, Stop};
use crate::Error;

/// Arrays inside arrays beyond this depth are refused (no known file nests at all).
pub const MAX_NESTING: u32 = 4;

/// A metadata value as the file has it.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are the value types of the GGUF format, by its names.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Bytes: checked to be UTF-8 when read as a string, so that a broken description does not bar a model.
    Str(Box<[u8]>),
    Array(Array),
}

/// A metadata array.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Str(StrArray),
    /// Arrays of arrays are checked and counted, not kept: no key that is read here has them.
    Nested {
        len: u64,
    },
}

/// An array of byte strings in two allocations: 262,144 tokens would otherwise be as many.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StrArray {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl StrArray {
    /// No strings.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), ends: Vec::new() }
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of string `index`, which real vocabularies do not always keep UTF-8.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.bytes.get(start..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

impl<B: AsRef<[u8]>> FromIterator<B> for StrArray {
    /// Strings past 4 GiB in sum are left out; a header is far smaller.
    fn from_iter<I: IntoIterator<Item = B>>(iter: I) -> Self {
        let mut out = Self::default();
        for item in iter {
            out.bytes.extend_from_slice(item.as_ref());
            let Ok(end) = u32::try_from(out.bytes.len()) else { break };
            out.ends.push(end);
        }
        out
    }
}

const TYPE_ARRAY: u32 = 9;

/// Name of a value type and bytes of its shortest value.
fn value_type(number: u32) -> Option<(&'static str, u64)> {
    Some(match number {
        0 => ("u8", 1),
        1 => ("i8", 1),
        2 => ("u16", 2),
        3 => ("i16", 2),
        4 => ("u32", 4),
        5 => ("i32", 4),
        6 => ("f32", 4),
        7 => ("bool", 1),
        8 => ("str", 8),
        TYPE_ARRAY => ("array", 12),
        10 => ("u64", 8),
        11 => ("i64", 8),
        12 => ("f64", 8),
        _ => return None,
    })
}

impl Value {
    /// The format's name of this value's type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::Bool(_) => "bool",
            Self::Str(_) => "str",
            Self::Array(_) => "array",
        }
    }

    /// Reads the value of `key`, its type number first.
    pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, Stop> {
        let what = "value of a metadata key";
        Ok(match cursor.u32(what)? {
            0 => Self::U8(u8::from_le_bytes(cursor.array(what)?)),
            1 => Self::I8(i8::from_le_bytes(cursor.array(what)?)),
            2 => Self::U16(u16::from_le_bytes(cursor.array(what)?)),
            3 => Self::I16(i16::from_le_bytes(cursor.array(what)?)),
            4 => Self::U32(cursor.u32(what)?),
            5 => Self::I32(i32::from_le_bytes(cursor.array(what)?)),
            6 => Self::F32(f32::from_le_bytes(cursor.array(what)?)),
            7 => Self::Bool(boolean(cursor.array::<1>(what)?[0], key)?),
            8 => Self::Str(cursor.string(what)?.into()),
            TYPE_ARRAY => Self::Array(Array::read(cursor, key)?),
            10 => Self::U64(cursor.u64(what)?),
            11 => Self::I64(i64::from_le_bytes(cursor.array(what)?)),
            12 => Self::F64(f64::from_le_bytes(cursor.array(what)?)),
            number => return Err(unknown_value_type(number, key).into()),
        })
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> u64 {
        match self {
            Self::U8(v) => v.len() as u64,
            Self::I8(v) => v.len() as u64,
            Self::U16(v) => v.len() as u64,
            Self::I16(v) => v.len() as u64,
            Self::U32(v) => v.len() as u64,
            Self::I32(v) => v.len() as u64,
            Self::U64(v) => v.len() as u64,
            Self::I64(v) => v.len() as u64,
            Self::F32(v) => v.len() as u64,
            Self::F64(v) => v.len() as u64,
            Self::Bool(v) => v.len() as u64,
            Self::Str(v) => v.len() as u64,
            Self::Nested { len } => *len,
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The format's name of the elements' type.
    pub fn element_type(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::Bool(_) => "bool",
            Self::Str(_) => "str",
            Self::Nested { .. } => "array",
        }
    }

    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, Stop> {
        let (number, len) = array_head(cursor, key)?;
        Ok(match number {
            0 => Self::U8(numbers(cursor, len, u8::from_le_bytes)?),
            1 => Self::I8(numbers(cursor, len, i8::from_le_bytes)?),
            2 => Self::U16(numbers(cursor, len, u16::from_le_bytes)?),
            3 => Self::I16(numbers(cursor, len, i16::from_le_bytes)?),
            4 => Self::U32(numbers(cursor, len, u32::from_le_bytes)?),
            5 => Self::I32(numbers(cursor, len, i32::from_le_bytes)?),
            6 => Self::F32(numbers(cursor, len, f32::from_le_bytes)?),
            7 => {
                let bytes = cursor.bytes(len, ARRAY)?;
                Self::Bool(bytes.iter().map(|&b| boolean(b, key)).collect::<Result<_, Stop>>()?)
            }
            8 => Self::Str(strings(cursor, len)?),
            TYPE_ARRAY => {
                for left in (1..=len).rev() {
                    cursor.need(left, 12, ARRAY)?;
                    skip_array(cursor, key, 2)?;
                }
                Self::Nested { len }
            }
            10 => Self::U64(numbers(cursor, len, u64::from_le_bytes)?),
            11 => Self::I64(numbers(cursor, len, i64::from_le_bytes)?),
            12 => Self::F64(numbers(cursor, len, f64::from_le_bytes)?),
            number => return Err(unknown_value_type(number, key).into()),
        })
    }
}

const ARRAY: &str = "elements of a metadata array";

/// Element type and count, the count checked against what is left.
fn array_head(cursor: &mut Cursor<'_>, key: &str) -> Result<(u32, u64), Stop> {
    let number = cursor.u32(ARRAY)?;
    let len = cursor.u64(ARRAY)?;
    let (_, least) = value_type(number).ok_or_else(|| unknown_value_type(number, key))?;
    cursor.need(len, least, ARRAY)?;
    Ok((number, len))
}

fn numbers<T, const N: usize>(cursor: &mut Cursor<'_>, len: u64, from: fn([u8; N]) -> T) -> Result<Vec<T>, Stop> {
    // The count was checked against the bytes at hand, so the product cannot overflow.
    let bytes = cursor.bytes(len * N as u64, ARRAY)?;
    Ok(bytes.as_chunks::<N>().0.iter().map(|&chunk| from(chunk)).collect())
}

fn strings(cursor: &mut Cursor<'_>, len: u64) -> Result<StrArray, Stop> {
    // A first pass measures, so that nothing grows by doubling and a file that is still arriving costs no allocation.
    let mut probe = cursor.at_same_place();
    let mut total = 0;
    for left in (1..=len).rev() {
        probe.need(left, 8, ARRAY)?;
        total += probe.string(ARRAY)?.len();
    }
    let mut out = StrArray { bytes: Vec::with_capacity(total), ends: Vec::with_capacity(len as usize) };
    for _ in 0..len {
        out.bytes.extend_from_slice(cursor.string(ARRAY)?);
        // A header is smaller than MAX_HEADER_BYTES, so every end fits.
        out.ends.push(out.bytes.len() as u32);
    }
    Ok(out)
}

/// Walks over an array without keeping it; `depth` counts the arrays that hold it, itself included.
fn skip_array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<(), Stop> {
    if depth > MAX_NESTING {
        let message = format!("The arrays of metadata key '{key}' nest deeper than {MAX_NESTING}.");
        return Err(Error::new("gguf.nesting_too_deep", message).with("key", key).with("limit", MAX_NESTING).into());
    }
    let (number, len) = array_head(cursor, key)?;
    match number {
        TYPE_ARRAY => {
            for left in (1..=len).rev() {
                cursor.need(left, 12, ARRAY)?;
                skip_array(cursor, key, depth + 1)?;
            }
        }
        8 => {
            for left in (1..=len).rev() {
                cursor.need(left, 8, ARRAY)?;
                cursor.string(ARRAY)?;
            }
        }
        _ => {
            let width = value_type(number).map_or(1, |(_, width)| width);
            cursor.bytes(len * width, ARRAY)?;
        }
    }
    Ok(())
}

fn boolean(byte: u8, key: &str) -> Result<bool, Stop> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        got => {
            let message = format!("A boolean of metadata key '{key}' is {got}; 0 or 1 was expected.");
            Err(Error::new("gguf.bad_bool", message).with("key", key).with("got", got).into())
        }
    }
}

fn unknown_value_type(number: u32, key: &str) -> Error {
    let message = format!("Metadata key '{key}' has the unknown value type number {number}; 0 to 12 are known.");
    Error::new("gguf.unknown_value_type", message).with("key", key).with("got", number)
}
