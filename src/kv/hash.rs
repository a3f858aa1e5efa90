//! Hashing: the chain of prefix hashes, and the mixing that state digests are made of. Not for secrets.
use crate::ids::TokenId;

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd1b5_4a32_d192_ed03;
const K2: u64 = 0x8ebc_6af0_9c88_c6e3;
const K3: u64 = 0x5899_65cc_7537_4cc3;

/// Folds `value` into `state`: a 64 x 64 -> 128 bit product whose halves are xored, so that every bit reaches every bit.
#[inline]
pub fn fold(state: u64, value: u64) -> u64 {
    let product = u128::from(state ^ K0 ^ value.rotate_left(32)) * u128::from((value ^ K1) | 1);
    let folded = (product as u64) ^ ((product >> 64) as u64);
    // A product with a small factor leaves patterns; one more round of xor and multiply removes them.
    (folded ^ state.rotate_left(23) ^ (folded >> 29)).wrapping_mul(K2)
}

/// Hash of all tokens from the start of a sequence to the end of a full block, and of what computed them.
///
/// Content alone: two sequences with the same tokens have the same hashes, whatever blocks they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixHash(u128);

impl PrefixHash {
    /// The chain's start under a model's fingerprint and an adapter.
    pub fn root(fingerprint: u64, adapter: u64) -> Self {
        Self::join(fold(fold(K2, fingerprint), adapter), fold(fold(K3, adapter), fingerprint))
    }

    /// The hash after one more full block.
    pub fn next(self, tokens: &[TokenId]) -> Self {
        let (mut low, mut high) = (self.0 as u64, (self.0 >> 64) as u64);
        for &TokenId(token) in tokens {
            low = fold(low, u64::from(token));
            high = fold(high ^ K3, u64::from(token) + 1);
        }
        Self::join(low, high)
    }

    /// The same hash in another life of the cache.
    pub fn salted(self, salt: u64) -> Self {
        Self::join(fold(self.0 as u64, salt), fold((self.0 >> 64) as u64, salt))
    }

    /// Its low half, for digests and maps.
    pub fn low(self) -> u64 {
        self.0 as u64
    }

    fn join(low: u64, high: u64) -> Self {
        Self((u128::from(high) << 64) | u128::from(low))
    }
}

/// Hasher for maps whose keys are [`PrefixHash`]es: they are uniform already. Such maps are never iterated.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Uniform(u64);

impl std::hash::Hasher for Uniform {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = fold(self.0, u64::from(byte));
        }
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

/// A map by prefix hash, for look-ups alone.
pub(crate) type HashIndex<V> = std::collections::HashMap<PrefixHash, V, std::hash::BuildHasherDefault<Uniform>>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_chain_tells_apart_order_parents_adapters_and_lengths() {
        let t = |ids: &[u32]| ids.iter().map(|&id| TokenId(id)).collect::<Vec<_>>();
        let root = PrefixHash::root(7, 0);
        let all = [
            root,
            PrefixHash::root(0, 7),
            PrefixHash::root(7, 1),
            root.next(&t(&[0])),
            root.next(&t(&[0, 0])),
            root.next(&t(&[1, 2])),
            root.next(&t(&[2, 1])),
            root.next(&t(&[1, 2])).next(&t(&[3, 4])),
            root.next(&t(&[3, 4])).next(&t(&[1, 2])),
            root.next(&t(&[1, 2])).salted(1),
            root.next(&t(&[1, 2])).salted(2),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(root.next(&t(&[1, 2])), PrefixHash::root(7, 0).next(&t(&[1, 2])));
    }

    #[test]
    fn neither_half_of_the_hash_collides_on_many_small_blocks() {
        let (mut low, mut high) = (HashSet::new(), HashSet::new());
        for first in 0..300 {
            for second in 0..300 {
                let PrefixHash(hash) = PrefixHash::root(1, 0).next(&[TokenId(first), TokenId(second)]);
                low.insert(hash as u64);
                high.insert((hash >> 64) as u64);
            }
        }
        assert_eq!((low.len(), high.len()), (90_000, 90_000));
    }
}
