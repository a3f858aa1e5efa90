//! The fixed pool of blocks: free, cached or held, with moves in O(1). Knows single blocks, not tables or sequences.
use super::hash::{HashIndex, PrefixHash, fold};
use crate::ids::{BlockId, TokenId};

/// Which of the three lists a block is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// No content, nobody holds it.
    Free,
    /// Nobody holds it, but its content can be hit until the block is needed.
    Cached,
    /// At least one holder.
    Held,
}

/// What precedes a block's content. Exact: no two contents share a number, so a chain of matches is a match of the whole prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Parent {
    /// The block is the first; the adapter and the life of the cache it was computed in.
    Root {
        /// 0: none.
        adapter: u64,
        /// Bumped when the device is lost.
        kv_epoch: u64,
    },
    /// The content with this number.
    Content(u64),
}

/// What a full block holds, when it can be hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Its number, never used again.
    pub number: u64,
    /// Where the index has it.
    pub key: PrefixHash,
    /// What precedes it.
    pub parent: Parent,
    /// Its tokens, compared on a hit.
    pub tokens: Box<[TokenId]>,
}

/// Why the pool did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockRefusal {
    /// Fewer blocks are free or cached than asked for.
    OutOfBlocks,
    /// A free block cannot be retained, a block that nobody holds cannot be released.
    NotHeld,
    /// The pool has no such block, or its count is at its end.
    BadBlock,
}

/// Blocks that changed lists since they were last asked for: for the trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockChanges {
    /// Taken for new content.
    pub allocated: Vec<BlockId>,
    /// Given back without content.
    pub freed: Vec<BlockId>,
    /// Given back with content that can be hit.
    pub cached: Vec<BlockId>,
}

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Block {
    state: BlockState,
    count: u32,
    prev: u32,
    next: u32,
    content: Option<Box<Content>>,
}

#[derive(Debug, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

/// The pool. Every block is in one list; the cached list is in order of use, least recent first.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    lists: [List; 3],
    index: HashIndex<BlockId>,
    shared: usize,
    next_content: u64,
    evictions: u64,
    digest: u64,
    changes: BlockChanges,
    /// Takes and retains until one is made to fail.
    #[cfg(test)]
    pub(crate) fail_after: Option<u32>,
}

impl BlockPool {
    /// A pool of free blocks. More than `u32::MAX - 1` are not made.
    pub fn new(num_blocks: usize) -> Self {
        let num = u32::try_from(num_blocks).unwrap_or(NONE).min(NONE - 1);
        let empty = List { head: NONE, tail: NONE, len: 0 };
        let mut pool = Self {
            blocks: Vec::with_capacity(num as usize),
            lists: [empty; 3],
            index: HashIndex::default(),
            shared: 0,
            next_content: 0,
            evictions: 0,
            digest: 0,
            changes: BlockChanges::default(),
            #[cfg(test)]
            fail_after: None,
        };
        let block = Block { state: BlockState::Free, count: 0, prev: NONE, next: NONE, content: None };
        pool.blocks.resize(num as usize, block);
        // The free list is a stack: pushed in reverse, the lowest number is taken first.
        for id in (0..num).rev() {
            pool.push(id, BlockState::Free);
            pool.digest ^= pool.block_digest(id);
        }
        pool
    }

    /// All blocks.
    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks in a state.
    pub fn num(&self, state: BlockState) -> usize {
        self.lists[state as usize].len
    }

    /// Blocks that can be taken: free and cached.
    pub fn available(&self) -> usize {
        self.num(BlockState::Free) + self.num(BlockState::Cached)
    }

    /// Blocks with more than one holder.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// Contents given up because their block was needed.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Digest of every block's state, count and content.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// State and holders of a block; `None` outside the pool.
    pub fn get(&self, id: BlockId) -> Option<(BlockState, u32)> {
        self.blocks.get(id.0 as usize).map(|block| (block.state, block.count))
    }

    /// What can be hit in a block.
    pub fn content(&self, id: BlockId) -> Option<&Content> {
        self.blocks.get(id.0 as usize)?.content.as_deref()
    }

    /// The block that holds exactly these tokens after exactly this parent.
    pub fn find(&self, key: PrefixHash, parent: Parent, tokens: &[TokenId]) -> Option<BlockId> {
        let id = *self.index.get(&key)?;
        let content = self.content(id)?;
        (content.parent == parent && *content.tokens == *tokens).then_some(id)
    }

    /// Takes `count` blocks, each with one holder: free ones first, then cached ones, least recently used first.
    /// All or nothing.
    ///
    /// # Errors
    /// `OutOfBlocks`; nothing changed.
    pub fn acquire(&mut self, count: usize, out: &mut Vec<BlockId>) -> Result<(), BlockRefusal> {
        if self.fails(count) || count > self.available() {
            return Err(BlockRefusal::OutOfBlocks);
        }
        for _ in 0..count {
            let free = self.lists[BlockState::Free as usize].tail;
            let id = if free == NONE { self.lists[BlockState::Cached as usize].head } else { free };
            if free == NONE {
                self.evictions += 1;
                self.forget(BlockId(id));
            }
            self.change(id, |pool| {
                pool.relist(id, BlockState::Held);
                pool.blocks[id as usize].count = 1;
            });
            self.changes.allocated.push(BlockId(id));
            out.push(BlockId(id));
        }
        Ok(())
    }

    /// One more holder for each of these held or cached blocks. All or nothing.
    ///
    /// # Errors
    /// `NotHeld` for a free block, `BadBlock` for one outside the pool or with too many holders; nothing changed.
    pub fn retain(&mut self, ids: &[BlockId]) -> Result<(), BlockRefusal> {
        self.check_retain(ids)?;
        for &BlockId(id) in ids {
            self.change(id, |pool| {
                pool.relist(id, BlockState::Held);
                let block = &mut pool.blocks[id as usize];
                block.count += 1;
                pool.shared += usize::from(block.count == 2);
            });
        }
        Ok(())
    }

    /// Whether [`BlockPool::retain`] would do it.
    pub(super) fn check_retain(&mut self, ids: &[BlockId]) -> Result<(), BlockRefusal> {
        if self.fails(ids.len()) {
            return Err(BlockRefusal::BadBlock);
        }
        for &id in ids {
            match self.get(id) {
                None => return Err(BlockRefusal::BadBlock),
                Some((BlockState::Free, _)) => return Err(BlockRefusal::NotHeld),
                // A block may stand in the list more than once: room for all of them.
                Some((_, count)) if ((u32::MAX - count) as usize) < ids.len() => {
                    return Err(BlockRefusal::BadBlock);
                }
                Some((BlockState::Cached | BlockState::Held, _)) => {}
            }
        }
        Ok(())
    }

    /// One holder less; the last one leaves the block cached if its content can be hit, else free.
    ///
    /// # Errors
    /// `NotHeld`, `BadBlock`; nothing changed.
    pub fn release(&mut self, id: BlockId) -> Result<(), BlockRefusal> {
        match self.get(id) {
            None => return Err(BlockRefusal::BadBlock),
            Some((BlockState::Free | BlockState::Cached, _)) => return Err(BlockRefusal::NotHeld),
            Some((BlockState::Held, _)) => {}
        }
        self.change(id.0, |pool| {
            let block = &mut pool.blocks[id.0 as usize];
            block.count -= 1;
            pool.shared -= usize::from(block.count == 1);
            if block.count == 0 {
                let keeps = block.content.is_some();
                pool.relist(id.0, if keeps { BlockState::Cached } else { BlockState::Free });
                if keeps { pool.changes.cached.push(id) } else { pool.changes.freed.push(id) }
            }
        });
        Ok(())
    }

    /// Makes a held block's content addressable and returns the content's number. When another block has the same content already that one
    /// stays the addressable one and its number is returned. An unreachable or colliding content under the same key gives way.
    ///
    /// # Errors
    /// `NotHeld`, `BadBlock`; nothing changed.
    pub fn publish(
        &mut self,
        id: BlockId,
        key: PrefixHash,
        parent: Parent,
        tokens: &[TokenId],
    ) -> Result<u64, BlockRefusal> {
        match self.get(id) {
            None => return Err(BlockRefusal::BadBlock),
            Some((BlockState::Free | BlockState::Cached, _)) => return Err(BlockRefusal::NotHeld),
            Some((BlockState::Held, _)) => {}
        }
        if let Some(&other) = self.index.get(&key) {
            match self.content(other) {
                Some(content) if content.parent == parent && *content.tokens == *tokens => return Ok(content.number),
                _ => self.forget(other),
            }
        }
        self.forget(id);
        let number = self.next_content;
        self.next_content += 1;
        self.change(id.0, |pool| {
            pool.blocks[id.0 as usize].content =
                Some(Box::new(Content { number, key, parent, tokens: tokens.to_vec().into_boxed_slice() }));
        });
        self.index.insert(key, id);
        Ok(number)
    }

    /// Nobody will hit this block's content again; a cached block becomes free.
    pub fn forget(&mut self, id: BlockId) {
        if self.content(id).is_none() {
            return;
        }
        self.change(id.0, |pool| {
            if let Some(content) = pool.blocks[id.0 as usize].content.take() {
                pool.index.remove(&content.key);
            }
            if pool.blocks[id.0 as usize].state == BlockState::Cached {
                pool.relist(id.0, BlockState::Free);
            }
        });
    }

    /// Forgets every content. O(blocks): for a lost device.
    pub fn forget_all(&mut self) {
        for id in 0..self.blocks.len() as u32 {
            self.forget(BlockId(id));
        }
    }

    /// Hands out the changes since the last call, and goes on in the (emptied) memory given.
    pub fn swap_changes(&mut self, changes: &mut BlockChanges) {
        for list in [&mut changes.allocated, &mut changes.freed, &mut changes.cached] {
            list.clear();
        }
        std::mem::swap(&mut self.changes, changes);
    }

    fn change(&mut self, id: u32, what: impl FnOnce(&mut Self)) {
        self.digest ^= self.block_digest(id);
        what(self);
        self.digest ^= self.block_digest(id);
    }

    fn block_digest(&self, id: u32) -> u64 {
        let block = &self.blocks[id as usize];
        let head = fold(u64::from(id), ((block.state as u64) << 32) | u64::from(block.count));
        block.content.as_ref().map_or(head, |content| fold(head, content.key.low()))
    }

    /// Moves a block to the end of a list, when it is not in it already.
    fn relist(&mut self, id: u32, to: BlockState) {
        if self.blocks[id as usize].state != to {
            self.unlink(id);
            self.push(id, to);
        }
    }

    fn push(&mut self, id: u32, to: BlockState) {
        let tail = self.lists[to as usize].tail;
        let block = &mut self.blocks[id as usize];
        (block.state, block.prev, block.next) = (to, tail, NONE);
        if tail == NONE {
            self.lists[to as usize].head = id;
        } else {
            self.blocks[tail as usize].next = id;
        }
        self.lists[to as usize].tail = id;
        self.lists[to as usize].len += 1;
    }

    fn unlink(&mut self, id: u32) {
        let (state, prev, next) = {
            let block = &self.blocks[id as usize];
            (block.state as usize, block.prev, block.next)
        };
        if prev == NONE {
            self.lists[state].head = next;
        } else {
            self.blocks[prev as usize].next = next;
        }
        if next == NONE {
            self.lists[state].tail = prev;
        } else {
            self.blocks[next as usize].prev = prev;
        }
        self.lists[state].len -= 1;
    }

    #[cfg(test)]
    pub(super) fn set_count(&mut self, id: BlockId, count: u32) {
        self.blocks[id.0 as usize].count = count;
    }

    /// Whether one of the next `count` takes was chosen to fail by a test.
    #[cfg(test)]
    fn fails(&mut self, count: usize) -> bool {
        match self.fail_after {
            Some(left) if (left as usize) < count => {
                self.fail_after = None;
                true
            }
            Some(left) => {
                self.fail_after = Some(left - count as u32);
                false
            }
            None => false,
        }
    }

    #[cfg(not(test))]
    #[inline]
    fn fails(&mut self, _count: usize) -> bool {
        false
    }

    /// Checks lists, counts, index and digest against the blocks themselves. `holders[b]`: holders that the caller knows of.
    ///
    /// # Errors
    /// A sentence saying what is wrong.
    pub fn check_integrity(&self, holders: &[u32]) -> Result<(), String> {
        let mut seen = 0;
        for state in [BlockState::Free, BlockState::Cached, BlockState::Held] {
            let list = self.lists[state as usize];
            let (mut id, mut prev, mut len) = (list.head, NONE, 0);
            while id != NONE {
                let block = self.blocks.get(id as usize).ok_or_else(|| format!("list {state:?} has block {id}"))?;
                if block.state != state || block.prev != prev || len > list.len {
                    return Err(format!("block {id} is wrongly linked in list {state:?}"));
                }
                (prev, id, len) = (id, block.next, len + 1);
            }
            if len != list.len || prev != list.tail {
                return Err(format!("list {state:?} has {len} blocks, its length says {}", list.len));
            }
            seen += len;
        }
        if seen != self.total() {
            return Err(format!("free + cached + held = {seen}, total = {}", self.total()));
        }
        let (mut digest, mut shared, mut contents) = (0, 0, 0);
        for (id, block) in self.blocks.iter().enumerate() {
            let id = id as u32;
            let held = holders.get(id as usize).copied().unwrap_or(0);
            if block.count != held {
                return Err(format!("block {id} counts {} holders, {held} hold it", block.count));
            }
            if (block.state == BlockState::Held) != (block.count > 0) {
                return Err(format!("block {id} is {:?} with {} holders", block.state, block.count));
            }
            if (block.state == BlockState::Free && block.content.is_some())
                || (block.state == BlockState::Cached && block.content.is_none())
            {
                return Err(format!("block {id} is {:?}, content: {}", block.state, block.content.is_some()));
            }
            if let Some(content) = &block.content {
                contents += 1;
                if self.index.get(&content.key) != Some(&BlockId(id)) {
                    return Err(format!("block {id} has content that the index does not lead to"));
                }
            }
            digest ^= self.block_digest(id);
            shared += usize::from(block.count > 1);
        }
        if contents != self.index.len() {
            return Err(format!("the index has {} entries for {contents} contents", self.index.len()));
        }
        if (digest, shared) != (self.digest, self.shared) {
            return Err("the pool's digest or its count of shared blocks is stale".to_owned());
        }
        Ok(())
    }
}
