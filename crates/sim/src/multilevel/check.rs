//! The properties of locks on a hierarchy, on true time.

use conclave_protocol::id::Token;
use conclave_protocol::multilevel::Block;

use super::meter::Meter;

/// Who is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) wish: u64,
    pub(super) node: u32,
    /// Holders of one class may be inside together; an exclusive one has a class of its own.
    pub(super) class: u64,
}

/// What was broken, and how.
pub(super) type Broken = (&'static str, String);

/// Watches who is inside and which tokens are used.
#[derive(Clone, Debug, Default)]
pub(super) struct Check {
    inside: Vec<Holder>,
    /// The largest token used so far, with its class, and the largest of any other class.
    best: Option<(Token, u64)>,
    second: Option<Token>,
}

impl Check {
    /// Somebody enters and uses the tokens of the block up to `token`.
    pub(super) fn enters(
        &mut self,
        holder: Holder,
        block: Block,
        token: Token,
    ) -> Result<(), Broken> {
        let clash = self.inside.iter().find(|other| other.class != holder.class);
        if let Some(other) = clash {
            let (node, beside) = (holder.node + 1, other.node + 1);
            return Err((
                "exclusion",
                format!("node {node} enters while node {beside} is inside"),
            ));
        }
        if block.is_empty() {
            let node = holder.node + 1;
            return Err(("tokens", format!("node {node} gets no token: {block:?}")));
        }
        let before = match self.best {
            Some((best, class)) if class != holder.class => Some(best),
            _ => self.second,
        };
        // The smallest token that it may use is the one after those used before.
        if before.is_some_and(|before| before.0 > block.from.0) {
            return Err((
                "tokens",
                format!(
                    "node {} gets {block:?} after {before:?} was used by others",
                    holder.node + 1
                ),
            ));
        }
        self.used(holder.class, token);
        self.inside.push(holder);
        Ok(())
    }

    fn used(&mut self, class: u64, token: Token) {
        match self.best {
            Some((best, of)) if token > best => {
                if of != class {
                    self.second = Some(best);
                }
                self.best = Some((token, class));
            }
            Some((_, of)) if of != class => self.second = self.second.max(Some(token)),
            Some(_) => {}
            None => self.best = Some((token, class)),
        }
    }

    /// Somebody is not inside any more.
    pub(super) fn leaves(&mut self, wish: u64) {
        self.inside.retain(|holder| holder.wish != wish);
    }

    /// Who is inside.
    pub(super) fn inside(&self) -> &[Holder] {
        &self.inside
    }
}

/// Whether the messages of a whole run without failures add up: every request is answered once,
/// and once more after each yield, and every request and announcement is ended.
pub(super) fn adds_up(meter: &Meter, levels: u8, announce: bool) -> Result<(), Broken> {
    let of = |kind| meter.of(kind);
    let equal = |what: &str, left: u64, right: u64| {
        if left == right {
            return Ok(());
        }
        Err(("messages", format!("{what}: {left} and {right}")))
    };
    equal("requests and releases", of("Request"), of("Release"))?;
    equal(
        "replies and requests with yields",
        of("Reply"),
        of("Request") + of("Yield"),
    )?;
    if of("Yield") > of("Inquire") {
        return Err(("messages", "more yields than inquiries".to_owned()));
    }
    equal("asks and consents", of("CRequest"), of("CReply"))?;
    let opened = if announce { "PreCRequest" } else { "CRequest" };
    equal("pairings and their ends", of(opened), of("CRelease"))?;
    if levels > 0 && of("CRequest") < meter.entries() {
        return Err(("messages", "an entry without an ask".to_owned()));
    }
    equal("recoveries and none", of("NodeRecovery"), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(wish: u64, class: u64) -> Holder {
        Holder {
            wish,
            node: wish as u32,
            class,
        }
    }

    fn block(from: u64) -> Block {
        Block {
            from: Token(from),
            to: Token(from + 10),
        }
    }

    #[test]
    fn exclusion_can_fail() {
        let mut check = Check::default();
        check.enters(holder(1, 7), block(0), Token(1)).unwrap();
        check.enters(holder(2, 7), block(0), Token(1)).unwrap();
        let broken = check.enters(holder(3, 8), block(5), Token(6)).unwrap_err();
        assert_eq!(broken.0, "exclusion");
        check.leaves(1);
        assert!(check.enters(holder(3, 8), block(5), Token(6)).is_err());
        check.leaves(2);
        assert_eq!(check.enters(holder(3, 8), block(5), Token(6)), Ok(()));
    }

    #[test]
    fn tokens_can_fail() {
        let mut check = Check::default();
        let mut enters = |wish, class, from, token| {
            let result = check.enters(holder(wish, class), block(from), Token(token));
            check.leaves(wish);
            result.is_ok()
        };
        assert!(enters(1, 1, 3, 5));
        assert!(!enters(2, 2, 4, 9), "below what another class used");
        assert!(enters(3, 1, 4, 9), "its own class may share");
        assert!(!enters(4, 2, 8, 9));
        assert!(enters(5, 2, 9, 10));
        assert!(enters(6, 1, 10, 11));
        let none = Block {
            from: Token(50),
            to: Token(50),
        };
        assert!(check.enters(holder(7, 7), none, Token(50)).is_err());
    }
}
