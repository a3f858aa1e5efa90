//! Who runs next: queues, policy, plan, commit, rollback. Pure: no clock, no model, no async.
pub mod batch;
