//! The engine: `Executor`, the loop, requests, events, stats, trace. Generic over the executor; the model is one of them.
