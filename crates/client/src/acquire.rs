//! The way of a request from its first word to a guard.

use std::time::Duration;

use conclave_protocol::lock::{Acquire, ClientEvent, Ended, Mode};

use crate::clock;
use crate::driver::{Driver, Job, Work};
use crate::error::{AcquireError, closed, no_quorum};
use crate::guard::{Hold, Part};

/// Hears the place in the queue.
pub(crate) type OnPosition = Box<dyn FnMut(u32) + Send>;

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// As long as it takes.
    Forever,
    /// Not longer than this.
    AtMost(Duration),
    /// Only for the answer of the nodes.
    Not,
}

/// How many of the locks that are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// The only one.
    One,
    /// All together, or none.
    All,
    /// Any one.
    Any,
}

/// What is wanted.
pub(crate) struct Wanted {
    pub(crate) driver: Driver,
    pub(crate) wishes: Vec<Acquire>,
    pub(crate) want: Want,
    /// What is wrong with it, if that is known before anybody is asked.
    pub(crate) wrong: Option<AcquireError>,
    pub(crate) on_position: Option<OnPosition>,
}

impl Wanted {
    /// Takes what is wanted; none if somebody is in the way of an attempt.
    pub(crate) async fn take(mut self, wait: Wait) -> Result<Option<Hold>, AcquireError> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let span = match wait {
            Wait::Forever => None,
            Wait::AtMost(span) => Some(span),
            // An attempt needs answers: nodes that give none must not make it wait for ever.
            Wait::Not => Some(self.driver.config().times.link_ttl * 3),
        };
        let deadline = span.map(|span| clock::now().mono + span);
        for wish in &mut self.wishes {
            wish.deadline = deadline;
            wish.attempt = wait == Wait::Not;
        }
        loop {
            let work = match self.want {
                Want::All => Work::AcquireAll(self.wishes.clone()),
                Want::Any => Work::AcquireAny(self.wishes.clone()),
                Want::One => {
                    let one = self.wishes.first().cloned();
                    Work::Acquire(one.expect("invariant: a request for one lock has one wish"))
                }
            };
            let job = if self.on_position.is_some() {
                self.driver.begin(work)
            } else {
                self.driver.begin_quietly(work)
            };
            match self.follow(job).await? {
                Followed::Held(hold) => return Ok(Some(hold)),
                Followed::Busy => return Ok(None),
                // It was won and lost again before anybody could use it.
                Followed::Lost => {}
            }
        }
    }

    async fn follow(&mut self, mut job: Job) -> Result<Followed, AcquireError> {
        let mut parts: Vec<Part> = Vec::with_capacity(self.wishes.len());
        let mut place = None;
        loop {
            let complete = match job.next().await {
                Some(ClientEvent::Entered {
                    name,
                    token,
                    members,
                    group,
                    ..
                }) => {
                    parts.push(Part {
                        name,
                        token,
                        group,
                        members,
                    });
                    self.want != Want::All
                }
                Some(ClientEvent::EnteredAll(_)) => true,
                Some(ClientEvent::Position(_, position)) => {
                    place = Some(position);
                    if let Some(tell) = &mut self.on_position {
                        tell(position);
                    }
                    false
                }
                Some(ClientEvent::Lost(..) | ClientEvent::Ended(_, Ended::NotHeld)) => {
                    return Ok(Followed::Lost);
                }
                Some(ClientEvent::Ended(_, ended)) => return self.ended(&ended, place),
                Some(ref event @ ClientEvent::Moved { .. }) => {
                    for part in &mut parts {
                        part.apply(event);
                    }
                    false
                }
                Some(_) => false,
                None => return Err(closed(&self.driver)),
            };
            if complete {
                // After a pause it may be over already; whoever gets a guard has had it.
                let held = parts.iter().all(|part| job.holds(&part.name));
                return Ok(if held {
                    Followed::Held(Hold::new(job, parts))
                } else {
                    Followed::Lost
                });
            }
        }
    }

    fn ended(&self, ended: &Ended, position: Option<u32>) -> Result<Followed, AcquireError> {
        match ended {
            Ended::Busy => Ok(Followed::Busy),
            Ended::Refused(why) => Err(AcquireError::Refused(*why)),
            Ended::TimedOut if self.has_quorum() => Err(AcquireError::TimedOut { position }),
            Ended::TimedOut => Err(self.no_quorum()),
            Ended::Cancelled if self.driver.is_unauthenticated() => {
                Err(AcquireError::NotAuthenticated)
            }
            Ended::Cancelled if self.driver.is_hopeless() => Err(self.no_quorum()),
            Ended::Cancelled | Ended::Released | Ended::NotHeld => Err(closed(&self.driver)),
        }
    }

    fn has_quorum(&self) -> bool {
        let reachable = self.driver.reachable();
        let modes = self.wishes.iter().map(|wish| &wish.mode);
        let config = self.driver.config();
        let quorums = &config.quorums;
        let served = |mode: &Mode| quorums.served_by(mode, reachable.iter().copied());
        modes.into_iter().all(served)
    }

    fn no_quorum(&self) -> AcquireError {
        no_quorum(&self.driver)
    }
}

enum Followed {
    Held(Hold),
    Busy,
    Lost,
}
