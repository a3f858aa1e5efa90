//! Wrong kernels for tests of the self-test: while planted, products of the named families leave out half of K.
use std::cell::RefCell;

use crate::ops::matmul::Variant;

thread_local! {
    static WRONG: RefCell<Vec<Variant>> = const { RefCell::new(Vec::new()) };
}

/// Takes the wrong kernels away when dropped.
pub struct Planted(());

impl Drop for Planted {
    fn drop(&mut self) {
        WRONG.with_borrow_mut(Vec::clear);
    }
}

/// Plants a wrong matmul in each of the families, for this thread.
pub fn plant(variants: &[Variant]) -> Planted {
    WRONG.with_borrow_mut(|wrong| *wrong = variants.to_vec());
    Planted(())
}

/// K as the family's kernel sees it.
pub fn seen(variant: Variant, k: usize) -> usize {
    if WRONG.with_borrow(|wrong| wrong.contains(&variant)) { k / 2 } else { k }
}
