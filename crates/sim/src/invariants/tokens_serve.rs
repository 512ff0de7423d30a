//! Whoever could be served is served, whatever others did to the tokens.
//!
//! A node may refuse the token of an honest requester only as long as it takes to hear the clocks
//! of the others. So no request is refused again by the same node after [`PATIENCE`], and none
//! ends because of it.

use std::collections::BTreeMap;

use conclave_protocol::id::{NodeId, RequestNo, SessionId};

use super::book::{broken, name_of};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// So long a node may refuse the same request, in nanoseconds.
const PATIENCE: u64 = 100_000_000;

/// Checks that tokens lock nobody out. It holds while nodes hear each other.
#[derive(Debug, Default)]
pub struct TokensServe {
    refused: BTreeMap<(NodeId, SessionId, RequestNo), True>,
}

impl Checker for TokensServe {
    fn property(&self) -> &'static str {
        "tokens-serve"
    }

    fn watch(&mut self, at: True, fact: &Fact, _: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::TokenRefused {
                node,
                session,
                request,
            } => {
                let first = *self
                    .refused
                    .entry((*node, *session, *request))
                    .or_insert(at);
                if at.0 - first.0 > PATIENCE {
                    let millis = (at.0 - first.0) / 1_000_000;
                    let what = format!("{node} has refused request {request} for {millis} ms");
                    return broken(self.property(), at, what);
                }
            }
            Fact::Unserved { holder } => {
                let what = format!("{} was turned away for its token", name_of(holder));
                return broken(self.property(), at, what);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Story, holder};
    use super::*;

    #[test]
    fn a_refusal_that_lasts_is_found() {
        let mut story = Story::new(|_| vec![Box::new(TokensServe::default())]);
        let refused = || Fact::TokenRefused {
            node: NodeId(0),
            session: SessionId(1),
            request: RequestNo(1),
        };
        story.at = 10;
        story.holds(refused());
        story.at += PATIENCE;
        story.holds(refused());
        story.at += 1;
        story.breaks("tokens-serve", refused());
    }

    #[test]
    fn a_request_that_ends_for_its_token_is_found() {
        let mut story = Story::new(|_| vec![Box::new(TokensServe::default())]);
        story.breaks("tokens-serve", Fact::Unserved { holder: holder(1) });
    }
}
