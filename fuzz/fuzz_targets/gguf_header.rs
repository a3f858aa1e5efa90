//! Any bytes as a GGUF file, whole and as they would arrive: a typed error or a table within the file.
#![no_main]
use fireside::gguf::{Gguf, ParseStep};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let whole = Gguf::from_bytes(file);
    let mut len = file.len().min(64);
    loop {
        match Gguf::parse(&file[..len], file.len() as u64) {
            Ok(ParseStep::NeedMore { at_least }) => {
                assert!(at_least > len as u64 && at_least <= file.len() as u64);
                len = at_least as usize;
            }
            Ok(ParseStep::Done(gguf)) => {
                assert!(gguf.tensors.iter().all(|tensor| tensor.end() <= file.len() as u64));
                return assert!(whole.is_ok());
            }
            Err(error) => return assert_eq!(error.code, whole.unwrap_err().code),
        }
    }
});
