//! GGUF vocabulary -> `tokenizers`, and the incremental detokenizer. Knows nothing of chat or sampling.
