//! Wrong kernels for tests of the self-test: while planted, products of the named families leave out half of K, or those of
//! several rows give other bits than one row alone.
use std::cell::RefCell;

use crate::ops::matmul::Variant;

thread_local! {
    static WRONG: RefCell<Vec<Variant>> = const { RefCell::new(Vec::new()) };
    static OTHER_BITS: RefCell<Vec<Variant>> = const { RefCell::new(Vec::new()) };
}

/// Takes the wrong kernels away when dropped.
pub struct Planted(());

impl Drop for Planted {
    fn drop(&mut self) {
        WRONG.with_borrow_mut(Vec::clear);
        OTHER_BITS.with_borrow_mut(Vec::clear);
    }
}

/// Plants a wrong matmul in each of the families, for this thread.
pub fn plant(variants: &[Variant]) -> Planted {
    WRONG.with_borrow_mut(|wrong| *wrong = variants.to_vec());
    Planted(())
}

/// Lets products of several rows end in other bits, in each of the families, for this thread.
pub fn plant_other_bits(variants: &[Variant]) -> Planted {
    OTHER_BITS.with_borrow_mut(|other| *other = variants.to_vec());
    Planted(())
}

/// What a product gave, as a planted kernel would have it.
pub fn nudged(variant: Variant, tokens: usize, mut got: Vec<f32>) -> Vec<f32> {
    if variant.rows(tokens) > 1 && OTHER_BITS.with_borrow(|other| other.contains(&variant)) {
        got.iter_mut().for_each(|v| *v = f32::from_bits(v.to_bits() ^ 1));
    }
    got
}

/// K as the family's kernel sees it.
pub fn seen(variant: Variant, k: usize) -> usize {
    if WRONG.with_borrow(|wrong| wrong.contains(&variant)) { k / 2 } else { k }
}
