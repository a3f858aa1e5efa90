//! Slots for the fixed-size state of recurrent layers, one a running sequence, beside the block pool. Knows slot numbers, never
//! tensors. Hybrid models take one at admission and give it back on release; pure attention models have a pool of none.
use super::hash::fold;

/// A fixed pool of state slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSlotPool {
    /// A stack: the slot given back last is taken first.
    free: Vec<u32>,
    held: Vec<bool>,
    digest: u64,
}

impl StateSlotPool {
    /// A pool of free slots; `num_slots` is the number of sequences that may run at once, 0 for models without such layers.
    pub fn new(num_slots: u32) -> Self {
        Self { free: (0..num_slots).rev().collect(), held: vec![false; num_slots as usize], digest: 0 }
    }

    /// All slots.
    pub fn total(&self) -> usize {
        self.held.len()
    }

    /// Slots that can be taken.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Digest of which slots are held.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Takes `count` slots, or none when fewer are free.
    pub fn acquire(&mut self, count: usize) -> Option<Vec<u32>> {
        let rest = self.free.len().checked_sub(count)?;
        let mut taken = self.free.split_off(rest);
        taken.reverse();
        for &slot in &taken {
            self.mark(slot, true);
        }
        Some(taken)
    }

    /// Gives a slot back. False: nobody held it.
    pub fn release(&mut self, slot: u32) -> bool {
        if self.held.get(slot as usize) != Some(&true) {
            return false;
        }
        self.mark(slot, false);
        self.free.push(slot);
        true
    }

    fn mark(&mut self, slot: u32, held: bool) {
        if let Some(place) = self.held.get_mut(slot as usize) {
            *place = held;
            self.digest ^= fold(3, u64::from(slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_all_or_nothing_and_given_back_once() {
        let mut pool = StateSlotPool::new(3);
        let fresh = pool.digest();
        assert_eq!(pool.acquire(2), Some(vec![0, 1]));
        let two = pool.clone();
        assert_eq!(pool.acquire(2), None);
        assert_eq!(pool, two);
        assert!(pool.release(0) && !pool.release(0) && !pool.release(2) && !pool.release(9));
        assert_eq!(pool.acquire(2), Some(vec![0, 2]));
        assert!((0..3).all(|slot| pool.release(slot)));
        assert_eq!((pool.available(), pool.total(), pool.digest()), (3, 3, fresh));
        assert_eq!(StateSlotPool::new(0).acquire(1), None);
    }
}
