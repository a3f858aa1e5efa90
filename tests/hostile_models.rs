//! Every malformed file ends in a typed error before any weight is read, and the ones that are merely odd load or refuse
//! cleanly: no panic, no hang. The parser's own hostile tests are in gguf_hostile.rs.
#![cfg(feature = "cpu")]
mod support;

use fireside::backend::Backend;
use support::{goldens, json, load, logits};

#[test]
fn malformed_files_are_refused_with_a_code() {
    let backend = Backend::cpu().expect("the CPU backend");
    let mut refused = 0;
    for entry in json("hostile/index.json").as_array().expect("a list") {
        let file = entry["file"].as_str().expect("file");
        let path = goldens().join("hostile").join(file);
        let loaded = load(&path, &backend, 64);
        match entry["expected"].as_str().expect("expected") {
            "load" => {
                loaded.unwrap_or_else(|e| panic!("{file}: {e}"));
            }
            "reject" => {
                let error = loaded.map(|_| ()).expect_err(file);
                assert!(error.code.contains('.'), "{file}: {error}");
                println!("{file}: {error}");
                refused += 1;
            }
            _ => match loaded {
                // A NaN in the weights may give NaN in the logits, which sampling refuses; it must not hang or trap.
                Ok(mut model) => assert_eq!(logits(&mut model, &[1, 2, 3], &[2], 8).len(), 1, "{file}"),
                Err(error) => println!("{file}: {error}"),
            },
        }
    }
    assert!(refused >= 15, "only {refused} files were refused");
}
