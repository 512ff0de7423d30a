//! Lock protocols as pure state machines. Time, chance, network and disk are arguments: the node,
//! the client, the simulator and the model checker drive the same code.

pub mod baseline;
pub mod fault;
pub mod hold_watch;
pub mod id;
pub mod keeper;
pub mod lease;
pub mod lock;
pub mod machine;
pub mod membership;
pub mod multilevel;
pub mod object;
pub mod rediscovery;
pub mod table;
pub mod time;

pub use machine::{Effects, EffectsOf, Envelope, Machine};
pub use time::{Instant, Now, Wake, Wall};
