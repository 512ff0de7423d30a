//! Rules of leases that can be broken on purpose.

/// Which rules hold. [`Rules::default`] breaks none; the service never makes another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules;
