//! Chat templates: the model's own Jinja text rendered over messages. Tokenizing the result is the caller's.
