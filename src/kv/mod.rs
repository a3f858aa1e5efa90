//! KV blocks: pool, tables, prefix hash chain, manager. Knows block numbers, never tensors.
mod hash;
mod manager;
mod pool;
mod state_slots;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use hash::HashIndex;
pub use hash::{PrefixHash, fold};
pub use manager::{CopyBlock, KvManager, KvStats, PrefixHit, Reservation};
pub use pool::{BlockChanges, BlockPool, BlockRefusal, BlockState, Content, Parent};
pub use state_slots::StateSlotPool;
pub use table::BlockTable;
