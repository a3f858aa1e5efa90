//! Tests that fail without the rule they name.
