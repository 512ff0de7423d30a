//! Locks on a hierarchy, message by message: small scripted networks of real nodes.
//!
//! Each scenario is a few messages delivered by hand. Where a rule of the protocol answers for it,
//! the same scenario is run with that rule broken and must fail: so each test shows that its rule
//! is needed, and that the test would notice.

mod choosers;
mod failures;
mod leases;
mod net;
mod rules;
mod timing;
