//! What clients were told about the second object can be explained by one order.

use super::{Chain, broken};
use crate::fact::{True, Violation};
use crate::linear::{Action, Call, Reply, Verdict, check};

/// A search that takes longer says nothing.
const STEPS_MAX: u64 = 2_000_000;

/// The history of one object.
#[derive(Debug, Default)]
pub struct Answers {
    calls: Vec<Call<Action, Reply>>,
    /// Its states.
    pub chain: Chain,
}

impl Answers {
    /// A client begins an operation; the number is for its end.
    pub fn began(&mut self, at: True, client: u32, op: Action) -> usize {
        self.calls.push(Call {
            client: u64::from(client),
            began: at.0,
            op,
            ended: None,
        });
        self.calls.len() - 1
    }

    /// The client was told what came of it.
    pub fn ended(&mut self, at: True, call: usize, reply: Reply) {
        self.calls[call].ended = Some((at.0, reply));
    }

    /// The run is over.
    pub fn over(&self, at: True) -> Result<(), Violation> {
        match check(&self.calls, STEPS_MAX) {
            Verdict::Linearizable | Verdict::Unknown => Ok(()),
            Verdict::Broken(found) => {
                let call = self.calls.get(found.stuck);
                let what = format!(
                    "no order explains it: {} of {} operations fit, then not {call:?}",
                    found.longest.len(),
                    self.calls.len()
                );
                Err(broken("linearizable", at, what))
            }
        }
    }

    /// The history.
    pub fn calls(&self) -> &[Call<Action, Reply>] {
        &self.calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_update_is_found() {
        let mut answers = Answers::default();
        let one = answers.began(True(1), 1, Action::Add(1));
        let two = answers.began(True(1), 2, Action::Add(1));
        answers.ended(True(5), one, Reply::Number(1));
        assert!(answers.over(True(9)).is_ok());
        answers.ended(True(6), two, Reply::Number(1));
        assert_eq!(answers.over(True(9)).unwrap_err().property, "linearizable");
    }
}
