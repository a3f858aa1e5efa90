//! Tests of pool and manager: lists, counts, copies, sharing, and that failed calls change nothing.
use proptest::prelude::*;

use super::*;
use crate::ids::{BlockId, TokenId};

fn tokens(range: std::ops::Range<u32>) -> Vec<TokenId> {
    range.map(TokenId).collect()
}

fn hashes(tokens: &[TokenId], block_size: usize) -> Vec<PrefixHash> {
    let next = |hash: &mut PrefixHash, tokens: &[TokenId]| {
        *hash = hash.next(tokens);
        Some(*hash)
    };
    tokens.chunks_exact(block_size).scan(PrefixHash::root(1, 0), next).collect()
}

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().map(|&id| BlockId(id)).collect()
}

/// A table whose blocks hold `tokens`, all of them computed.
fn filled(kv: &mut KvManager, tokens: &[TokenId], block_size: usize) -> BlockTable {
    let mut table = BlockTable::default();
    let hashes = hashes(tokens, block_size);
    let hit = kv.find_prefix(0, tokens, &hashes, tokens.len() / block_size);
    let new = kv.blocks_for(tokens.len()) - hit.len();
    kv.admit(&mut table, &hit, new).unwrap();
    kv.publish(&mut table, 0, tokens, &hashes, tokens.len());
    table
}

#[test]
fn a_free_block_is_not_retained_and_an_unheld_one_not_released() {
    let mut pool = BlockPool::new(2);
    let before = pool.digest();
    assert_eq!(pool.retain(&ids(&[0])), Err(BlockRefusal::NotHeld));
    assert_eq!(pool.retain(&ids(&[7])), Err(BlockRefusal::BadBlock));
    assert_eq!(pool.release(BlockId(0)), Err(BlockRefusal::NotHeld));
    assert_eq!(pool.release(BlockId(7)), Err(BlockRefusal::BadBlock));
    assert_eq!(pool.publish(BlockId(0), PrefixHash::root(0, 0), Parent::Content(0), &[]), Err(BlockRefusal::NotHeld));
    let mut taken = Vec::new();
    pool.acquire(1, &mut taken).unwrap();
    assert_eq!(pool.retain(&ids(&[0, 1])), Err(BlockRefusal::NotHeld), "all or nothing");
    assert_eq!(pool.get(BlockId(0)), Some((BlockState::Held, 1)));
    pool.release(taken[0]).unwrap();
    assert_eq!(pool.release(taken[0]), Err(BlockRefusal::NotHeld), "released twice");
    assert_eq!(pool.digest(), before);
    pool.check_integrity(&[0, 0]).unwrap();
}

#[test]
fn a_reservation_that_runs_out_at_any_block_changes_nothing() {
    for available in 0..5 {
        let mut kv = KvManager::new(2 + available, 4);
        let mut table = BlockTable::default();
        kv.reserve(&mut table, 0, 7).unwrap();
        let before = (kv.digest(), table.digest());
        assert_eq!(kv.reserve(&mut table, 7, 8 + 4 * available + 1), Err(BlockRefusal::OutOfBlocks));
        assert_eq!(before, (kv.digest(), table.digest()));
        kv.reserve(&mut table, 7, 8 + 4 * available).unwrap();
        assert_eq!(kv.available(), 0);
        kv.check_integrity([&table]).unwrap();
    }
}

#[test]
fn an_admission_that_fails_anywhere_changes_nothing() {
    let all = tokens(0..20);
    for after in 0..6 {
        let mut kv = KvManager::new(8, 4);
        let mut table = filled(&mut kv, &all[..12], 4);
        kv.release_all(&mut table, false);
        let before = kv.digest();
        let hit = kv.find_prefix(0, &all, &hashes(&all, 4), 5);
        assert_eq!((hit.len(), kv.admission_cost(&hit, 2)), (3, 5));
        kv.pool_mut().fail_after = Some(after);
        let admitted = kv.admit(&mut table, &hit, 2);
        assert_eq!(admitted.is_err(), after < 5);
        if admitted.is_err() {
            assert_eq!((before, true), (kv.digest(), table.is_empty()), "at {after}");
        }
        kv.check_integrity([&table]).unwrap();
    }
}

#[test]
fn a_fork_that_fails_at_any_block_restores_every_count() {
    for after in 0..=9 {
        let mut kv = KvManager::new(8, 4);
        let table = filled(&mut kv, &tokens(0..11), 4);
        let before = kv.digest();
        kv.pool_mut().fail_after = Some(after);
        let forked = kv.fork(&table, 3);
        assert_eq!(forked.is_err(), after < 9);
        match forked {
            Err(_) => {
                assert_eq!(before, kv.digest());
                kv.check_integrity([&table]).unwrap();
            }
            Ok(children) => kv.check_integrity(children.iter().chain([&table])).unwrap(),
        }
    }
}

#[test]
fn sharers_copy_but_the_last_who_writes_in_place() {
    let mut kv = KvManager::new(8, 4);
    let parent = filled(&mut kv, &tokens(0..6), 4);
    let mut tables = kv.fork(&parent, 3).unwrap();
    tables.insert(0, parent);
    let before: Vec<_> = tables.iter().map(BlockTable::digest).collect();
    let digest = kv.digest();
    let reserve = |kv: &mut KvManager, tables: &mut [BlockTable]| -> Vec<Reservation> {
        tables.iter_mut().map(|table| kv.reserve(table, 6, 7).unwrap()).collect()
    };
    let reservations = reserve(&mut kv, &mut tables);
    let copies: Vec<_> = reservations.iter().filter_map(Reservation::copy).collect();
    assert_eq!(copies.len(), 3);
    assert!(copies.iter().all(|copy| copy.from == BlockId(1) && tables[3].blocks()[1] == copy.from));
    assert!(tables.iter().all(|table| kv.writable(table.blocks()[1]) && !kv.writable(table.blocks()[0])));
    kv.check_integrity(&tables).unwrap();
    // Rolled back: as if it had not been.
    for (table, &reservation) in tables.iter_mut().zip(&reservations).rev() {
        kv.undo(table, reservation);
    }
    kv.check_integrity(&tables).unwrap();
    assert_eq!((digest, before), (kv.digest(), tables.iter().map(BlockTable::digest).collect()));
    // Committed: the source is let go.
    let reservations = reserve(&mut kv, &mut tables);
    reservations.into_iter().for_each(|reservation| kv.settle(reservation));
    kv.check_integrity(&tables).unwrap();
    assert_eq!((kv.num_pins(), kv.stats().shared, kv.stats().held), (0, 1, 5));
}

#[test]
fn a_copys_source_outlives_its_other_holders_until_the_step_is_over() {
    let mut kv = KvManager::new(4, 4);
    let mut one = filled(&mut kv, &tokens(0..6), 4);
    let mut other = kv.fork(&one, 1).unwrap().remove(0);
    let reservation = kv.reserve(&mut one, 6, 7).unwrap();
    kv.release_all(&mut other, false);
    assert_eq!(kv.stats().held, 3, "block 1 is still to be read");
    kv.undo(&mut one, reservation);
    assert_eq!(one.blocks(), ids(&[0, 1]));
    kv.check_integrity([&one]).unwrap();
    assert_eq!(kv.reserve(&mut one, 6, 7).unwrap().copy(), None, "alone now: in place");
}

#[test]
fn free_blocks_are_taken_before_cached_ones_and_those_by_age() {
    let mut kv = KvManager::new(5, 4);
    let (first, second) = (tokens(0..8), tokens(100..108));
    let mut one = filled(&mut kv, &first, 4);
    let mut two = filled(&mut kv, &second, 4);
    kv.release_all(&mut one, false);
    kv.release_all(&mut two, false);
    let found = |kv: &KvManager, tokens: &[TokenId]| kv.find_prefix(0, tokens, &hashes(tokens, 4), 9).len();
    let mut table = BlockTable::default();
    kv.reserve(&mut table, 0, 4).unwrap();
    assert_eq!((found(&kv, &first), found(&kv, &second), kv.stats().evictions), (2, 2, 0));
    // Using the first again makes the second the older one.
    let mut again = filled(&mut kv, &first, 4);
    kv.release_all(&mut again, false);
    kv.reserve(&mut table, 4, 8).unwrap();
    // Released tail first: the child goes, its parent stays.
    assert_eq!((found(&kv, &first), found(&kv, &second), kv.stats().evictions), (2, 1, 1));
    kv.reserve(&mut table, 8, 16).unwrap();
    assert_eq!((found(&kv, &first), found(&kv, &second)), (1, 0));
    kv.check_integrity([&table]).unwrap();
}

#[test]
fn a_second_block_with_the_same_content_stays_unhashed() {
    let mut kv = KvManager::new(8, 4);
    let all = tokens(0..8);
    let mut one = filled(&mut kv, &all, 4);
    let mut two = BlockTable::default();
    kv.reserve(&mut two, 0, 8).unwrap();
    kv.publish(&mut two, 0, &all, &hashes(&all, 4), 8);
    kv.release_all(&mut two, false);
    assert_eq!((kv.stats().cached, kv.stats().free), (0, 6));
    kv.release_all(&mut one, false);
    assert_eq!(kv.stats().cached, 2);
    kv.check_integrity([]).unwrap();
}

#[test]
fn a_collision_is_no_hit_and_neither_is_a_child_of_another_parent() {
    let mut pool = BlockPool::new(4);
    let mut taken = Vec::new();
    pool.acquire(4, &mut taken).unwrap();
    let (key, other) = (PrefixHash::root(1, 1), PrefixHash::root(2, 2));
    let root = Parent::Root { adapter: 0, kv_epoch: 0 };
    let first = pool.publish(taken[0], key, root, &tokens(0..4)).unwrap();
    pool.publish(taken[1], other, Parent::Content(first), &tokens(4..8)).unwrap();
    assert_eq!(pool.find(key, root, &tokens(0..4)), Some(taken[0]));
    assert_eq!(pool.find(key, root, &tokens(1..5)), None, "tokens are compared");
    assert_eq!(pool.find(key, Parent::Root { adapter: 1, kv_epoch: 0 }, &tokens(0..4)), None);
    assert_eq!(pool.find(key, Parent::Root { adapter: 0, kv_epoch: 1 }, &tokens(0..4)), None);
    // Other tokens under the same hash: the newer content is the addressable one, the old one's children are out of reach.
    let second = pool.publish(taken[2], key, root, &tokens(1..5)).unwrap();
    assert_eq!(pool.find(key, root, &tokens(0..4)), None);
    assert_eq!(pool.find(other, Parent::Content(second), &tokens(4..8)), None, "computed after other tokens");
    pool.check_integrity(&[1, 1, 1, 1]).unwrap();
}

#[test]
fn the_same_hashes_under_another_adapter_are_no_hit() {
    let mut kv = KvManager::new(4, 4);
    let all = tokens(0..8);
    filled(&mut kv, &all, 4);
    assert_eq!(kv.find_prefix(0, &all, &hashes(&all, 4), 2).len(), 2);
    assert_eq!(kv.find_prefix(1, &all, &hashes(&all, 4), 2).len(), 0);
}

#[test]
fn contents_of_a_failed_sequence_are_out_of_reach_with_all_that_followed_them() {
    let mut kv = KvManager::new(16, 4);
    let all = tokens(0..16);
    let mut bad = filled(&mut kv, &all[..8], 4);
    let mut longer = filled(&mut kv, &all, 4);
    kv.release_all(&mut bad, true);
    assert_eq!(kv.find_prefix(0, &all, &hashes(&all, 4), 4).len(), 0);
    // Computed anew by a sound sequence: its blocks are found, those that were computed from the bad ones are not.
    let mut good = filled(&mut kv, &all[..8], 4);
    assert_eq!(kv.find_prefix(0, &all, &hashes(&all, 4), 4).len(), 2);
    kv.release_all(&mut longer, false);
    kv.release_all(&mut good, false);
    kv.check_integrity([]).unwrap();
}

#[test]
fn counts_at_their_end_refuse_to_be_shared() {
    let mut pool = BlockPool::new(1);
    let mut taken = Vec::new();
    pool.acquire(1, &mut taken).unwrap();
    pool.set_count(taken[0], u32::MAX);
    assert_eq!(pool.retain(&taken), Err(BlockRefusal::BadBlock));
    assert_eq!(pool.get(taken[0]), Some((BlockState::Held, u32::MAX)));
}

#[derive(Debug, Clone)]
enum Op {
    Admit { family: u32, len: usize, computed: usize },
    Grow { table: usize, by: usize, keep: bool },
    Fork { table: usize, children: usize },
    Release { table: usize, forget: bool },
    Lose,
    Fault(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let table = any::<usize>();
    prop_oneof![
        4 => (0..3_u32, 1..30_usize, 0..30_usize).prop_map(|(family, len, computed)| Op::Admit { family, len, computed }),
        6 => (table, 1..9_usize, any::<bool>()).prop_map(|(table, by, keep)| Op::Grow { table, by, keep }),
        2 => (any::<usize>(), 1..4_usize).prop_map(|(table, children)| Op::Fork { table, children }),
        4 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(table, forget)| Op::Release { table, forget }),
        1 => Just(Op::Lose),
        2 => (0..10_u32).prop_map(Op::Fault),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_sequence_of_calls_keeps_lists_counts_and_digests(
        (blocks, size) in (1..24_usize, 1..5_usize),
        ops in prop::collection::vec(op(), 0..80),
    ) {
        let mut kv = KvManager::new(blocks, size);
        // Table, computed tokens.
        let mut live: Vec<(BlockTable, usize)> = Vec::new();
        for op in ops {
            let before = kv.digest();
            let mut failed = false;
            match op {
                Op::Admit { family, len, computed } => {
                    let tokens = tokens(family..family + len as u32);
                    let hashes = hashes(&tokens, size);
                    let hit = kv.find_prefix(0, &tokens, &hashes, (len - 1) / size);
                    let end = computed.clamp(hit.len() * size, len);
                    let mut table = BlockTable::default();
                    failed = kv.admit(&mut table, &hit, kv.blocks_for(end) - hit.len()).is_err();
                    if !failed {
                        kv.publish(&mut table, 0, &tokens, &hashes, end);
                        live.push((table, end));
                    }
                }
                Op::Grow { table, by, keep } if !live.is_empty() => {
                    let nth = table % live.len();
                    let (table, computed) = &mut live[nth];
                    let cost = kv.cost(table, *computed, *computed + by);
                    let available = kv.available();
                    let table_before = table.digest();
                    match kv.reserve(table, *computed, *computed + by) {
                        Err(_) => failed = true,
                        Ok(reservation) => {
                            prop_assert_eq!(available - cost, kv.available());
                            let first = *computed / size;
                            prop_assert!(table.blocks()[first..].iter().all(|&block| kv.writable(block)));
                            if keep {
                                kv.settle(reservation);
                                *computed += by;
                            } else {
                                let evicted = kv.stats().evictions;
                                kv.undo(table, reservation);
                                prop_assert_eq!(table_before, table.digest());
                                prop_assert_eq!(available, kv.available());
                                prop_assert_eq!(evicted, kv.stats().evictions);
                            }
                        }
                    }
                }
                Op::Fork { table, children } if !live.is_empty() => {
                    let (table, computed) = &live[table % live.len()];
                    match kv.fork(table, children) {
                        Err(_) => failed = true,
                        Ok(children) => {
                            let computed = *computed;
                            live.extend(children.into_iter().map(|table| (table, computed)));
                        }
                    }
                }
                Op::Release { table, forget } if !live.is_empty() => {
                    let nth = table % live.len();
                    kv.release_all(&mut live.swap_remove(nth).0, forget);
                }
                Op::Lose => {
                    for (mut table, _) in live.drain(..) {
                        kv.release_all(&mut table, false);
                    }
                    kv.device_lost();
                    prop_assert_eq!(kv.stats().free, blocks);
                }
                Op::Fault(after) => kv.pool_mut().fail_after = Some(after),
                Op::Grow { .. } | Op::Fork { .. } | Op::Release { .. } => {}
            }
            if failed {
                prop_assert_eq!(before, kv.digest(), "a failed call changed something");
            }
            let checked = kv.check_integrity(live.iter().map(|(table, _)| table));
            prop_assert_eq!(checked, Ok(()));
        }
    }
}
