//! Split models: the parts of one model, each a GGUF file with a header of its own, joined to one table of tensors.
//!
//! Parts are as `gguf-split` writes them: `split.no`, `split.count` and `split.tensors.count` in each, the model's own metadata
//! in part 0 only. Which order the parts come in does not matter: `split.no` says what each is.
use super::tensor::check_count;
use super::{Gguf, index_names};
use crate::{Error, Result};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

impl Gguf {
    /// Joins the headers of a model's files, given with the offset at which each file's bytes start; afterwards the tensors'
    /// offsets count from there. One file that is whole is given back as it is.
    ///
    /// # Errors
    /// `gguf.split_missing` when parts are missing, `gguf.split_mismatch` when files do not belong together, and what the
    /// joined table may violate (`gguf.duplicate_tensor`, `gguf.limit_exceeded`).
    pub fn join(mut files: Vec<(Self, u64)>) -> Result<Self> {
        let num_files = files.len() as u64;
        for (index, (gguf, _)) in files.iter().enumerate() {
            let count = gguf.metadata.opt_u64(COUNT)?.unwrap_or(1);
            if count != num_files {
                return Err(wrong_count(index, count, num_files));
            }
        }
        if num_files > 1 {
            check_numbers(&files)?;
            files.sort_by_key(|(gguf, _)| gguf.metadata.opt_u64(NO).ok().flatten());
        }
        let expected = files.first().map(|(gguf, _)| gguf.metadata.opt_u64(TENSORS)).transpose()?.flatten();
        let mut files = files.into_iter();
        let Some((mut whole, base)) = files.next() else {
            return Err(Error::new("gguf.split_missing", "No file was given.").with("expected", 1).with("got", 0));
        };
        whole.tensors.iter_mut().for_each(|tensor| tensor.offset += base);
        for (part, base) in files {
            check_count((whole.tensors.len() + part.tensors.len()) as u64)?;
            whole.tensors.extend(part.tensors.into_iter().map(|mut tensor| {
                tensor.offset += base;
                tensor
            }));
        }
        if num_files > 1 && expected.is_some_and(|expected| expected != whole.tensors.len() as u64) {
            let message = "The parts do not hold as many tensors as the first one announces.";
            return Err(mismatch(message).with("expected", expected).with("got", whole.tensors.len()));
        }
        whole.tensors.sort_by_key(|tensor| tensor.offset);
        whole.by_name = index_names(&whole.tensors)?;
        Ok(whole)
    }
}

/// Every part says which it is; together they are 0 to n - 1, each once.
fn check_numbers(files: &[(Gguf, u64)]) -> Result<()> {
    let mut seen = vec![false; files.len()];
    for (index, (gguf, _)) in files.iter().enumerate() {
        let number = gguf.metadata.u64(NO)?;
        let slot = usize::try_from(number).ok().and_then(|number| seen.get_mut(number));
        match slot {
            Some(slot) if !*slot => *slot = true,
            _ => {
                let message = format!("File {index} calls itself part {number}, which is twice there or too many.");
                return Err(mismatch(&message).with("file", index).with("got", number).with("parts", files.len()));
            }
        }
    }
    Ok(())
}

fn wrong_count(index: usize, count: u64, num_files: u64) -> Error {
    let message = if count > 1 {
        format!("The model is split into {count} files; {num_files} were given.")
    } else {
        format!("File {index} of {num_files} is not a part of a split model.")
    };
    let code = if count > 1 { "gguf.split_missing" } else { "gguf.split_mismatch" };
    Error::new(code, message).with("file", index).with("expected", count).with("got", num_files)
}

fn mismatch(message: &str) -> Error {
    Error::new("gguf.split_mismatch", message)
}
