//! The tensor table: names, types, shapes and extents, each checked against the file.
use super::cursor::{Cursor, Stop, limit};
use super::types::GgmlType;
use crate::{Error, Result};

/// Most tensors a file may have; the largest known models have under 20,000.
pub const MAX_TENSORS: u64 = 1 << 15;

/// Most dimensions of a tensor, ggml's own limit.
pub const MAX_DIMS: u32 = 4;

/// Shortest entry of a tensor: its name's length, number of dimensions, type, offset.
const LEAST_ENTRY_BYTES: u64 = 8 + 4 + 4 + 8;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, e.g. `blk.0.attn_q.weight`.
    pub name: String,
    /// Type of its elements.
    pub ty: GgmlType,
    /// Sizes in ggml's order: the row length first. One to four, none zero.
    pub shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Bytes of the data.
    pub bytes: u64,
}

impl TensorInfo {
    /// Values in a row (ggml's `ne[0]`).
    pub fn row_len(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of rows: the product of the other dimensions.
    pub fn num_rows(&self) -> usize {
        // Reading has shown that the product of all dimensions fits.
        self.shape.iter().skip(1).product()
    }

    /// First byte after the data.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// Reads the entries; their offsets still count from the start of the data, which is not known before the last one.
pub(super) fn read_entries(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, Stop> {
    cursor.need(count, LEAST_ENTRY_BYTES, "tensor table")?;
    // Grows as entries are found to be there: one takes more memory than the fewest bytes it can have.
    let mut tensors = Vec::new();
    for left in (1..=count).rev() {
        cursor.need(left, LEAST_ENTRY_BYTES, "tensor table")?;
        tensors.push(read_entry(cursor)?);
    }
    Ok(tensors)
}

pub(super) fn check_count(count: u64) -> Result<()> {
    if count > MAX_TENSORS {
        let message = format!("The file declares {count} tensors; {MAX_TENSORS} are allowed.");
        return Err(limit(message, "tensors", MAX_TENSORS, count));
    }
    Ok(())
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<TensorInfo, Stop> {
    let what = "entry of a tensor";
    let name = cursor.name("tensor name")?.to_owned();
    let num_dims = cursor.u32(what)?;
    if num_dims > MAX_DIMS {
        let message = format!("Tensor '{name}' has {num_dims} dimensions; at most {MAX_DIMS} are allowed.");
        let error = Error::new("gguf.too_many_dims", message).with("tensor", name);
        return Err(error.with("limit", MAX_DIMS).with("got", num_dims).into());
    }
    let mut dims = [1; MAX_DIMS as usize];
    let dims = &mut dims[..num_dims.max(1) as usize];
    for dim in dims.iter_mut().take(num_dims as usize) {
        *dim = cursor.u64(what)?;
    }
    let ty = cursor.u32(what)?;
    let offset = cursor.u64(what)?;
    let ty = GgmlType::from_file(ty, &name)?;
    let (shape, bytes) = check_shape(&name, ty, dims)?;
    Ok(TensorInfo { name, ty, shape, offset, bytes })
}

fn check_shape(name: &str, ty: GgmlType, dims: &[u64]) -> Result<(Vec<usize>, u64)> {
    let shape_error = |code, problem: &str| {
        let message = format!("Tensor '{name}' of type {ty} has the shape {dims:?}: {problem}.");
        Error::new(code, message).with("tensor", name).with("type", ty.name()).with("shape", dims)
    };
    if dims.contains(&0) {
        return Err(shape_error("gguf.zero_dim", "no dimension may be zero"));
    }
    let row_len = dims.first().copied().unwrap_or(1);
    if !row_len.is_multiple_of(ty.block_elems() as u64) {
        let problem = format!("a row must be whole blocks of {} values", ty.block_elems());
        return Err(shape_error("gguf.bad_row_length", &problem).with("block_elems", ty.block_elems()));
    }
    let sizes = || {
        let elems = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
        usize::try_from(elems).ok()?;
        let shape = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
        Some((shape, ty.checked_bytes(elems)?))
    };
    sizes().ok_or_else(|| shape_error("gguf.size_overflow", "its size is not representable"))
}

/// Turns offsets into absolute ones, after checking that the extents are aligned and inside the file.
pub(super) fn place(tensors: &mut [TensorInfo], data_offset: u64, alignment: u64, file_bytes: u64) -> Result<()> {
    for tensor in tensors.iter_mut() {
        if !tensor.offset.is_multiple_of(alignment) {
            let (name, offset) = (&tensor.name, tensor.offset);
            let message = format!("Tensor '{name}' is at data offset {offset}, not a multiple of {alignment}.");
            let error = Error::new("gguf.misaligned_tensor", message).with("tensor", name.as_str());
            return Err(error.with("alignment", alignment).with("got", offset));
        }
        let start = data_offset.checked_add(tensor.offset);
        let end = start.and_then(|start| start.checked_add(tensor.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_bytes => tensor.offset = start,
            _ => return Err(out_of_bounds(tensor, data_offset, file_bytes)),
        }
    }
    Ok(())
}

/// Checks that the extents of tensors in file order do not overlap.
pub(super) fn check_apart(tensors: &[TensorInfo]) -> Result<()> {
    for pair in tensors.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        if a.end() > b.offset {
            let message = format!(
                "Tensor '{}' (bytes {} to {}) overlaps tensor '{}' (from byte {}).",
                a.name,
                a.offset,
                a.end(),
                b.name,
                b.offset
            );
            let error = Error::new("gguf.overlapping_tensors", message).with("tensor", b.name.as_str());
            return Err(error.with("other", a.name.as_str()).with("offset", b.offset).with("other_end", a.end()));
        }
    }
    Ok(())
}

fn out_of_bounds(tensor: &TensorInfo, data_offset: u64, file_bytes: u64) -> Error {
    let message = format!(
        "Tensor '{}' takes {} bytes from byte {data_offset} + {}, past the end of the file at {file_bytes}: it is cut \
         off or corrupt.",
        tensor.name, tensor.bytes, tensor.offset
    );
    Error::new("gguf.tensor_out_of_bounds", message)
        .with("tensor", tensor.name.as_str())
        .with("data_offset", data_offset)
        .with("offset", tensor.offset)
        .with("bytes", tensor.bytes)
        .with("file_bytes", file_bytes)
}
