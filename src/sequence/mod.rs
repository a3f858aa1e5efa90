//! One token stream: its states, events and counts. Knows nothing of blocks or of other sequences.
