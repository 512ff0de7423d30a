//! Expected messages of the lock protocols, from the size of a quorum.
//!
//! | protocol | messages per entry | delay |
//! |---|---|---|
//! | `Maekawa_M`, no contention | `3c`: request, locked, release with each member | 2 |
//! | `Maekawa_M`, worst case | `6c`: also failed, inquire, relinquish | 2 |
//! | `Maekawa_S` | `2c + 1`: the permissions travel on from holder to holder | `c + 1` |
//! | Ricart and Agrawala | `2(n - 1)`: request to and reply from every other node | 1 |
//! | central | `3`: request, grant, release | 2 |
//! | lease | `2n` for a try at every node, `n` for the release | 2 |
//!
//! `c` is the mean quorum size of the strategy in use, `n` the number of nodes. The delay counts
//! messages from one holder's exit to the next one's entry.

use super::load::Load;

/// Messages per entry of a critical section, and delays in messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Messages {
    /// Mean quorum size `c` that the numbers are for.
    pub quorum_size: f64,
    /// Maekawa with prompt release, no contention: `3c`.
    pub maekawa_m: f64,
    /// The same in the worst case: `6c`.
    pub maekawa_m_worst: f64,
    /// Its delay: a release and a grant.
    pub maekawa_m_delay: f64,
    /// Maekawa with permissions handed on: `2c + 1`.
    pub maekawa_s: f64,
    /// Its delay: `c + 1`.
    pub maekawa_s_delay: f64,
    /// Ricart and Agrawala among all nodes: `2(n - 1)`.
    pub ricart_agrawala: f64,
    /// One central server: `3`.
    pub central: f64,
    /// A lease at all nodes: `2n` for one try.
    pub lease_try: f64,
    /// Giving the lease back: `n`.
    pub lease_release: f64,
}

/// The messages of each protocol for quorums of mean size `quorum_size` among `nodes` nodes.
pub fn messages(nodes: usize, quorum_size: f64) -> Messages {
    let n = nodes as f64;
    let c = quorum_size;
    Messages {
        quorum_size: c,
        maekawa_m: 3.0 * c,
        maekawa_m_worst: 6.0 * c,
        maekawa_m_delay: 2.0,
        maekawa_s: 2.0 * c + 1.0,
        maekawa_s_delay: c + 1.0,
        ricart_agrawala: 2.0 * (n - 1.0).max(0.0),
        central: 3.0,
        lease_try: 2.0 * n,
        lease_release: n,
    }
}

/// The messages of each protocol under a strategy: its node loads sum to its mean quorum size.
pub fn messages_of(load: &Load) -> Messages {
    messages(load.loads.len(), load.mean_size())
}
