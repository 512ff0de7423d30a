//! What operators ask about the levels of a hierarchy.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::Book;

/// Counters of the levels.
#[derive(Debug)]
pub struct LevelMeters {
    /// Wishes for the clusters' consent.
    pub wants: Counter,
    /// Consents that came.
    pub consents: Counter,
    /// Consents that ran out while they were used.
    pub lost: Counter,
    /// Wishes that were refused.
    pub refused: Counter,
    /// How often another node was suspected.
    pub suspicions: Counter,
    /// Messages to other nodes.
    pub sent: Counter,
    /// Messages from other nodes.
    pub received: Counter,
    /// Locks that have consent.
    pub held: Gauge,
    /// Nodes that cannot be reached.
    pub suspected: Gauge,
}

impl LevelMeters {
    pub(super) fn new(book: &mut Book<'_>) -> Self {
        Self {
            wants: book.counter("levels_wants", "Wishes for the consent of the clusters"),
            consents: book.counter("levels_consents", "Consents of the clusters that came"),
            lost: book.counter("levels_lost", "Consents that ran out while they were used"),
            refused: book.counter("levels_refused", "Wishes that the clusters refused"),
            suspicions: book.counter("levels_suspicions", "How often another node was suspected"),
            sent: book.counter("levels_sent", "Messages to other nodes of the hierarchy"),
            received: book.counter("levels_received", "Messages from nodes of the hierarchy"),
            held: book.gauge(
                "levels_held",
                "Locks that have the consent of the clusters here",
            ),
            suspected: book.gauge("levels_suspected", "Nodes of the hierarchy out of reach"),
        }
    }
}
