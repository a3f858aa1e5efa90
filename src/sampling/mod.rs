//! From logits to a token: validated params, the processor chain, the seeded draw, stop rules, logprobs.
