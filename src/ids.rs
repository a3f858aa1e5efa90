//! Newtypes for the numbers that must not be mixed up. They carry no behaviour.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// An entry of the model's vocabulary.
    TokenId(u32)
);
id!(
    /// One token stream of a request. Never reused within an engine.
    SequenceId(u64)
);
id!(
    /// A KV block of the pool.
    BlockId(u32)
);
id!(
    /// One step's plan.
    PlanId(u64)
);
