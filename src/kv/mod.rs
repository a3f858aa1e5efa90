//! KV blocks: pool, tables, prefix hash chain, manager. Knows block numbers, never tensors.
