//! Tests of the heart with a scripted executor whose memory is real: a wrong block, a stale one or a lost copy changes the tokens.
mod cost;
mod machine;
mod policy;
mod random;
mod regressions;
