//! What must hold in every run, one file per property.
//!
//! | property | in words | source |
//! |---|---|---|
//! | [`Grounded`] | holders rest on grants given to their own request | Maekawa 1985 |
//! | [`Exclusion`] | different groups are never inside at the same true time | Joung 2003 |
//! | [`TokenOrder`] | tokens grow over conflicting holders, at each node | Kleppmann 2016 |
//! | [`Admission`] | the resource refuses only the past | Kleppmann 2016 |
//! | [`MaxInside`] | a node grants at most so many at once | Joung 2003, 4 |
//! | [`Bypass`] | late members pass a waiting request at most so often | own |
//! | [`Migration`] | whoever is served first as a holder had a quorum | own |
//! | [`LostInTime`] | a loss is known before the node grants again | Gray and Cheriton 1989 |
//! | [`NoForgotten`] | once faults have ended every request ends | Maekawa 1985 |
//! | [`ServedInTime`] | a request that a quorum could serve is served soon | own |
//! | [`Kept`] | a hold that a quorum could keep lasts | own |
//! | [`OneSlot`] | who takes any one of several never holds two | own |
//! | [`Memory`] | nodes keep only what is live | own |
//! | [`Watching`] | a watch never goes back and invents nothing | own |
//! | [`TokenBound`] | no token is far ahead of the nodes' clocks | own |
//! | [`TokensServe`] | nobody is turned away for a token | own |
//! | [`Structure`] | the invariants of the arbiter's state | Joung 2003, 4 |
//!
//! The checkers of one run share a [`Book`] of grants and holds. [`Grounded`] keeps it and must be
//! told each fact before the others; [`all`] has them in that order. Each fact costs a few table
//! lookups and at most one look at the lock and node it is about.

mod admission;
mod book;
mod bypass;
mod exclusion;
#[cfg(test)]
mod fake;
mod grounded;
mod kept;
mod lost_in_time;
mod max_inside;
mod memory;
mod migration;
mod no_forgotten;
mod one_slot;
mod served_in_time;
mod structure;
mod token_bound;
mod token_order;
mod tokens_serve;
mod watch;

use std::sync::Arc;

use conclave_protocol::lock::Config;

pub use admission::Admission;
pub use book::{Book, Given, Hold, Ledger, Place};
pub use bypass::Bypass;
pub use exclusion::Exclusion;
pub use grounded::Grounded;
pub use kept::Kept;
pub use lost_in_time::LostInTime;
pub use max_inside::MaxInside;
pub use memory::Memory;
pub use migration::Migration;
pub use no_forgotten::NoForgotten;
pub use one_slot::OneSlot;
pub use served_in_time::ServedInTime;
pub use structure::Structure;
pub use token_bound::TokenBound;
pub use token_order::TokenOrder;
pub use tokens_serve::TokensServe;
pub use watch::Watching;

use crate::fact::Checker;

/// All checkers for a run under this configuration, in the order in which they must be told each
/// fact. They belong to this one run.
pub fn all(config: &Arc<Config>) -> Vec<Box<dyn Checker>> {
    all_within(config, Memory::bound(config))
}

/// As [`all`], with a closer bound on the locks, sessions, clients and tombstones of a node.
pub fn all_within(config: &Arc<Config>, kept: [usize; 4]) -> Vec<Box<dyn Checker>> {
    let book = Book::default();
    vec![
        Box::new(Grounded::new(book.clone())),
        Box::new(Exclusion::new(book.clone())),
        Box::new(TokenOrder::new(book.clone())),
        Box::new(Admission::new(book.clone())),
        Box::new(LostInTime::new(book.clone())),
        Box::new(Structure::new(book.clone(), config.clone())),
        Box::new(MaxInside::new(book.clone(), config.clone())),
        Box::new(Bypass::new(book.clone(), config.clone())),
        Box::new(Migration::new(config.clone())),
        Box::new(OneSlot::default()),
        Box::new(Memory::new(book.clone(), kept, Memory::grace(config))),
        Box::new(NoForgotten::new(book)),
        Box::new(ServedInTime::default()),
        Box::new(Kept::default()),
        Box::new(Watching::new()),
        Box::new(TokenBound::new(config.clone())),
        Box::new(TokensServe::default()),
    ]
}

#[cfg(test)]
mod tests {
    use conclave_protocol::lock::{Mode, Policy, Quorums};

    use super::fake::{Story, acted, ask, ended, entered, entry, granted, holder, released};
    use super::*;
    use crate::fact::Fact;

    /// A configuration whose locks have the usual policy with a change.
    pub(super) fn config(change: impl FnOnce(&mut Policy)) -> Arc<Config> {
        let spec = conclave_quorum::text::parse("majority(3)").unwrap();
        let no_files = |_: &str| Err("no files here".to_owned());
        let built = conclave_quorum::build::build(&spec, None, &no_files).unwrap();
        let quorums = Quorums::new(&built.system, &[]).unwrap();
        let mut config = Config::new(quorums);
        let mut policy = Policy::default();
        change(&mut policy);
        config.policies.push((Vec::new(), policy));
        Arc::new(config)
    }

    #[test]
    fn an_ordinary_story_breaks_nothing() {
        let config = config(|_| {});
        let mut story = Story::all(&config);
        for client in 1..20 {
            let a = ask(client, &Mode::Exclusive);
            let grant = u64::from(client);
            story.at += 10;
            story.believes(client, story.at + 5);
            for node in 0..2 {
                story.shows(node, true, vec![entry(&a, grant)]);
                story.holds(granted(node, &a, grant));
            }
            story.holds(entered(
                &holder(client),
                &a,
                grant,
                &[(0, grant), (1, grant)],
            ));
            story.holds(acted(client, a.group(), grant, true));
            story.holds(released(client));
            for node in 0..2 {
                story.shows(node, true, vec![]);
                let why = conclave_protocol::lock::End::Done(conclave_protocol::id::Token(grant));
                story.holds(ended(node, &a, grant, why));
            }
        }
        story.holds(Fact::Healed);
        story.holds(Fact::Over);
    }

    #[test]
    fn names_are_unique() {
        let checkers = all(&config(|_| {}));
        let mut names: Vec<_> = checkers.iter().map(|checker| checker.property()).collect();
        assert_eq!(names[0], "grounded", "the keeper of the book comes first");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checkers.len());
    }
}
