//! Tables over the pool: admission with a shared prefix, reservation with copy-on-write, fork, release, publication of full blocks.
//! Decides nothing about who gets blocks.
use std::collections::BTreeMap;

use super::hash::PrefixHash;
use super::pool::{BlockChanges, BlockPool, BlockRefusal, BlockState, Parent};
use super::table::BlockTable;
use crate::ids::{BlockId, TokenId};

/// A block to copy before anything of the step is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyBlock {
    /// The shared block.
    pub from: BlockId,
    /// The writer's own.
    pub to: BlockId,
}

/// Leading blocks of a sequence that are there already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefixHit {
    blocks: Vec<BlockId>,
    parent: Option<Parent>,
}

impl PrefixHit {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Nothing found.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// What a plan reserved in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reservation {
    added: usize,
    copy: Option<(usize, CopyBlock)>,
}

impl Reservation {
    /// The copy that must precede the writes.
    pub fn copy(&self) -> Option<CopyBlock> {
        self.copy.map(|(_, copy)| copy)
    }
}

/// Counts of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvStats {
    /// All blocks.
    pub total: usize,
    /// Without content or holder.
    pub free: usize,
    /// Without holder, with content.
    pub cached: usize,
    /// With a holder.
    pub held: usize,
    /// With more than one.
    pub shared: usize,
    /// Contents given up so far.
    pub evictions: u64,
}

/// The pool and the rules by which tables use it.
#[derive(Debug)]
pub struct KvManager {
    pool: BlockPool,
    block_size: usize,
    kv_epoch: u64,
    /// Sources of copies that a plan in flight still reads, although the writer's table has let go of them.
    pins: BTreeMap<BlockId, u32>,
}

impl KvManager {
    /// `block_size` of 0 is taken as 1.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        Self { pool: BlockPool::new(num_blocks), block_size: block_size.max(1), kv_epoch: 0, pins: BTreeMap::new() }
    }

    /// Blocks that `tokens` tokens take.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Blocks that can be taken.
    pub fn available(&self) -> usize {
        self.pool.available()
    }

    /// Digest of the pool and the life of the cache. Tables have their own.
    pub fn digest(&self) -> u64 {
        super::hash::fold(self.pool.digest(), self.kv_epoch)
    }

    /// O(1).
    pub fn stats(&self) -> KvStats {
        KvStats {
            total: self.pool.total(),
            free: self.pool.num(BlockState::Free),
            cached: self.pool.num(BlockState::Cached),
            held: self.pool.num(BlockState::Held),
            shared: self.pool.shared(),
            evictions: self.pool.evictions(),
        }
    }

    /// Hands out the changes of blocks since the last call, and goes on in the memory given.
    pub fn swap_changes(&mut self, changes: &mut BlockChanges) {
        self.pool.swap_changes(changes);
    }

    /// The longest run of leading blocks that are addressable, `limit` at most. `hashes` and `tokens` are the sequence's.
    pub fn find_prefix(&self, adapter: u64, tokens: &[TokenId], hashes: &[PrefixHash], limit: usize) -> PrefixHit {
        let mut hit = PrefixHit::default();
        let mut parent = self.root(adapter);
        for (hash, tokens) in hashes.iter().zip(tokens.chunks_exact(self.block_size)).take(limit) {
            let Some(block) = self.pool.find(hash.salted(self.kv_epoch), parent, tokens) else { break };
            let Some(content) = self.pool.content(block) else { break };
            parent = Parent::Content(content.number);
            hit.blocks.push(block);
            hit.parent = Some(parent);
        }
        hit
    }

    /// Blocks that admitting with this hit takes away from the available ones, `new_blocks` included.
    pub fn admission_cost(&self, hit: &PrefixHit, new_blocks: usize) -> usize {
        let revived = hit.blocks.iter().filter(|&&id| self.pool.get(id).is_some_and(|(_, count)| count == 0)).count();
        revived + new_blocks
    }

    /// Fills an empty table with a hit and `new_blocks` blocks to write. All or nothing.
    ///
    /// # Errors
    /// The refusal; nothing changed.
    pub fn admit(&mut self, table: &mut BlockTable, hit: &PrefixHit, new_blocks: usize) -> Result<(), BlockRefusal> {
        if !table.is_empty() {
            return Err(BlockRefusal::BadBlock);
        }
        if self.admission_cost(hit, new_blocks) > self.pool.available() {
            return Err(BlockRefusal::OutOfBlocks);
        }
        // The hit is retained first, so that the new blocks are not taken from it.
        self.pool.retain(&hit.blocks)?;
        let mut fresh = Vec::new();
        if let Err(refusal) = self.pool.acquire(new_blocks, &mut fresh) {
            for &block in hit.blocks.iter().rev() {
                self.release_one(block);
            }
            return Err(refusal);
        }
        for &block in hit.blocks.iter().chain(&fresh) {
            table.push(block);
        }
        table.published = hit.blocks.len();
        table.parent = hit.parent;
        Ok(())
    }

    /// Blocks needed before positions `start..end` can be written into the table.
    pub fn cost(&self, table: &BlockTable, start: usize, end: usize) -> usize {
        self.blocks_for(end).saturating_sub(table.len()) + usize::from(self.must_copy(table, start).is_some())
    }

    /// Makes positions `start..end` writable: blocks are added, and a shared tail gets a copy of its own. All or nothing.
    ///
    /// # Errors
    /// `OutOfBlocks`; nothing changed.
    pub fn reserve(&mut self, table: &mut BlockTable, start: usize, end: usize) -> Result<Reservation, BlockRefusal> {
        let added = self.blocks_for(end).saturating_sub(table.len());
        let shared = self.must_copy(table, start);
        let mut fresh = Vec::new();
        self.pool.acquire(added + usize::from(shared.is_some()), &mut fresh)?;
        let mut reservation = Reservation { added, copy: None };
        if let Some((index, from)) = shared
            && let Some(to) = fresh.pop()
        {
            table.replace(index, to);
            // The table's hold on `from` becomes the plan's: the copy has yet to read it, and a rollback gives it back.
            *self.pins.entry(from).or_insert(0) += 1;
            reservation.copy = Some((index, CopyBlock { from, to }));
        }
        for block in fresh {
            table.push(block);
        }
        Ok(reservation)
    }

    /// Undoes a reservation.
    pub fn undo(&mut self, table: &mut BlockTable, reservation: Reservation) {
        if let Some((index, CopyBlock { from, to })) = reservation.copy
            && self.drop_pin(from)
        {
            table.replace(index, from);
            self.release_one(to);
        }
        for _ in 0..reservation.added {
            if let Some(block) = table.pop() {
                self.release_one(block);
            }
        }
    }

    /// The step of a reservation is over: what it copied from is let go.
    pub fn settle(&mut self, reservation: Reservation) {
        if let Some((_, CopyBlock { from, .. })) = reservation.copy
            && self.drop_pin(from)
        {
            self.release_one(from);
        }
    }

    /// Makes the blocks that are full by now addressable. `computed` tokens of the table's sequence have their KV.
    pub fn publish(
        &mut self,
        table: &mut BlockTable,
        adapter: u64,
        tokens: &[TokenId],
        hashes: &[PrefixHash],
        computed: usize,
    ) {
        let full = computed / self.block_size;
        while table.published < full {
            let index = table.published;
            let range = index * self.block_size..(index + 1) * self.block_size;
            let (Some(&block), Some(&hash), Some(tokens)) =
                (table.blocks.get(index), hashes.get(index), tokens.get(range))
            else {
                return;
            };
            let parent = table.parent.unwrap_or(self.root(adapter));
            let Ok(number) = self.pool.publish(block, hash.salted(self.kv_epoch), parent, tokens) else { return };
            table.parent = Some(Parent::Content(number));
            table.published += 1;
        }
    }

    /// `children` more tables over the same blocks. All or nothing.
    ///
    /// # Errors
    /// The refusal of the first block that cannot be shared; nothing changed.
    pub fn fork(&mut self, parent: &BlockTable, children: usize) -> Result<Vec<BlockTable>, BlockRefusal> {
        for done in 0..children {
            if let Err(refusal) = self.pool.retain(&parent.blocks) {
                for _ in 0..done {
                    for &block in parent.blocks.iter().rev() {
                        self.release_one(block);
                    }
                }
                return Err(refusal);
            }
        }
        let copy = |_| BlockTable {
            blocks: parent.blocks.clone(),
            published: parent.published,
            parent: parent.parent,
            digest: parent.digest,
        };
        Ok((0..children).map(copy).collect())
    }

    /// Gives all blocks back, tail first, so that parents outlive children. With `forget`, their contents are never hit again.
    pub fn release_all(&mut self, table: &mut BlockTable, forget: bool) {
        while let Some(block) = table.pop() {
            if forget {
                self.pool.forget(block);
            }
            self.release_one(block);
        }
        table.published = 0;
        table.parent = None;
    }

    /// All KV is gone: nothing cached so far is ever hit again.
    pub fn device_lost(&mut self) {
        self.pool.forget_all();
        self.kv_epoch += 1;
    }

    /// Whether a block can be written by a table that holds it: one holder, nothing addressable in it.
    pub fn writable(&self, block: BlockId) -> bool {
        let pins = self.pins.get(&block).copied().unwrap_or(0);
        let alone = self.pool.get(block).is_some_and(|(_, count)| count.saturating_sub(pins) == 1);
        alone && self.pool.content(block).is_none()
    }

    /// Checks the pool against all tables.
    ///
    /// # Errors
    /// A sentence saying what is wrong.
    pub fn check_integrity<'a>(&self, tables: impl IntoIterator<Item = &'a BlockTable>) -> Result<(), String> {
        let mut holders = vec![0_u32; self.pool.total()];
        let mut hold = |block: BlockId, times| match holders.get_mut(block.0 as usize) {
            Some(count) => {
                *count += times;
                Ok(())
            }
            None => Err(format!("a table holds block {block}, which the pool does not have")),
        };
        for table in tables {
            for &block in &table.blocks {
                hold(block, 1)?;
            }
            if table.digest != table.recompute_digest() {
                return Err("a table's digest is stale".to_owned());
            }
        }
        for (&block, &times) in &self.pins {
            hold(block, times)?;
        }
        self.pool.check_integrity(&holders)
    }

    /// Copies in flight that still hold their source.
    pub fn num_pins(&self) -> usize {
        self.pins.len()
    }

    #[cfg(test)]
    pub(crate) fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    fn root(&self, adapter: u64) -> Parent {
        Parent::Root { adapter, kv_epoch: self.kv_epoch }
    }

    /// The block at `start`, when writing there would change what others read.
    fn must_copy(&self, table: &BlockTable, start: usize) -> Option<(usize, BlockId)> {
        if start.is_multiple_of(self.block_size) {
            return None;
        }
        let index = start / self.block_size;
        let block = *table.blocks.get(index)?;
        let pins = self.pins.get(&block).copied().unwrap_or(0);
        let (_, count) = self.pool.get(block)?;
        (count.saturating_sub(pins) > 1).then_some((index, block))
    }

    fn drop_pin(&mut self, block: BlockId) -> bool {
        let Some(times) = self.pins.get_mut(&block) else { return false };
        *times -= 1;
        if *times == 0 {
            self.pins.remove(&block);
        }
        true
    }

    fn release_one(&mut self, block: BlockId) {
        let released = self.pool.release(block);
        debug_assert!(released.is_ok(), "a table held block {block} that the pool says nobody holds");
    }
}
