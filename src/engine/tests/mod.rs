//! The engine over a scripted executor: no model, no clock of its own, every await in the test's hand.
mod generation;
mod hostile;
mod lifecycle;
mod pressure;
mod readers;
mod requests;
mod resume;
mod scoring;
