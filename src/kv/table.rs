//! The blocks of one sequence, in order of position. Only [`super::KvManager`] changes one.
use super::hash::fold;
use super::pool::Parent;
use crate::ids::BlockId;

/// A sequence's blocks. Not cloneable: each entry is one holder of its block.
#[derive(Debug, Default)]
pub struct BlockTable {
    pub(super) blocks: Vec<BlockId>,
    /// Leading blocks that are full and whose content was offered to the index.
    pub(super) published: usize,
    /// What the next block to publish comes after; `None` until the first is.
    pub(super) parent: Option<Parent>,
    pub(super) digest: u64,
}

impl BlockTable {
    /// The blocks.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// No block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Leading blocks that are full and were offered to the index.
    pub fn published(&self) -> usize {
        self.published
    }

    /// Digest of which blocks stand where.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn push(&mut self, block: BlockId) {
        self.digest ^= entry(self.blocks.len(), block);
        self.blocks.push(block);
    }

    pub(super) fn pop(&mut self) -> Option<BlockId> {
        let block = self.blocks.pop()?;
        self.digest ^= entry(self.blocks.len(), block);
        Some(block)
    }

    /// Puts `to` where the block at `index` is and returns that one.
    pub(super) fn replace(&mut self, index: usize, to: BlockId) -> Option<BlockId> {
        let place = self.blocks.get_mut(index)?;
        let from = std::mem::replace(place, to);
        self.digest ^= entry(index, from) ^ entry(index, to);
        Some(from)
    }

    /// The digest computed anew.
    pub(super) fn recompute_digest(&self) -> u64 {
        self.blocks.iter().enumerate().fold(0, |digest, (index, &block)| digest ^ entry(index, block))
    }
}

fn entry(index: usize, block: BlockId) -> u64 {
    fold(index as u64, u64::from(block.0))
}
