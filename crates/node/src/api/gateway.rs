//! Takes, renews and releases locks for thin clients. The gateway keeps nothing about a held
//! lock: its caller has a handle, and any gateway can go on with it.

use std::sync::Arc;
use std::time::Duration;

use conclave_client::clock;
use conclave_client::driver::{Job, Work};
use conclave_client::semaphore::{slot_names, slot_of};
use conclave_client::trace::Caller as Traced;
use conclave_protocol::Instant;
use conclave_protocol::id::{Name, SessionId};
use conclave_protocol::lock::{Acquire, Action, Ask, ClientEvent, Ended, Handle, Mode, Refusal};
use conclave_wire::handle;
use futures_util::future::BoxFuture;
use tokio::time::Interval;

use super::App;
use super::admit::Caller;
use super::answer::Answer;
use super::deliver::Guard;
use super::errors::Failure;
use super::look::label;

/// How long a lock lasts if its caller does not say.
pub(crate) const TTL: Duration = Duration::from_secs(10);
/// How many TTLs a caller may wait in one request.
pub(super) const WAIT_TTLS: u32 = 100;
/// How long a try waits for answers of the nodes.
const TRY_WAIT: Duration = Duration::from_secs(2);
/// How long a waiting request lives without a quorum of nodes in reach.
const LOST_SIGHT: u32 = 3;
/// How often that is looked at.
const CHECK: Duration = Duration::from_secs(1);
/// How often, and how many times, a renewal is tried again while another one is under way.
const RENEW_AGAIN: (Duration, u32) = (Duration::from_millis(20), 100);

/// What a thin client asks for.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    /// Any one of so many slots of a semaphore, instead of the lock itself.
    pub(crate) slots: Option<u32>,
    pub(crate) ttl: Duration,
    /// How long to wait; zero is a try.
    pub(crate) wait: Option<Duration>,
    /// The caller's name for this acquisition, so that a retry does not exclude itself.
    pub(crate) id: Option<String>,
    /// Who asks, for people.
    pub(crate) owner: String,
    pub(crate) note: Option<Vec<u8>>,
    /// What the caller is doing, for traces.
    pub(crate) traced: Traced,
}

/// A lock or a lease that was taken, and the guard that goes with the answer.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) answer: Answer,
    pub(crate) guard: Guard,
}

/// An acquisition under way. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Attempt {
    app: Arc<App>,
    job: Job,
    name: Name,
    slots: Option<u32>,
    mode: Mode,
    caller: Caller,
    arrived: Instant,
    position: Option<u32>,
    check: Interval,
    /// How many checks in a row found no quorum.
    blind: u32,
    stopping: tokio::sync::watch::Receiver<bool>,
    /// Its session, in hex.
    session: String,
    /// Asks the nodes for the position, if somebody wants to follow it.
    follow: Option<Follow>,
    _waiting: Waiting,
}

/// A question to the nodes under way, or none until the next check.
#[derive(Default)]
struct Follow(Option<BoxFuture<'static, Option<u32>>>);

impl std::fmt::Debug for Follow {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Follow(..)")
    }
}

impl Follow {
    /// The answer to the question under way.
    async fn answer(follow: &mut Option<Self>) -> Option<u32> {
        let asked = follow.as_mut().and_then(|follow| follow.0.as_mut());
        let answer = match asked {
            Some(asked) => asked.await,
            None => std::future::pending().await,
        };
        *follow = Some(Self::default());
        answer
    }
}

/// What an attempt tells next.
#[derive(Debug)]
pub(crate) enum Step {
    /// The place in the queue.
    Position(u32),
    /// It is over.
    Over(Box<Result<Taken, Failure>>),
}

impl Step {
    fn over(result: Result<Taken, Failure>) -> Self {
        Self::Over(Box::new(result))
    }
}

/// What ends a wait for news.
enum Happened {
    Event(Option<ClientEvent>),
    Position(Option<u32>),
    Tick,
    Stop,
}

/// One of the requests that may wait at a time.
#[derive(Debug)]
struct Waiting {
    app: Arc<App>,
    _permit: super::share::Place,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.app.meters.waiters.dec();
    }
}

impl App {
    /// Begins to take a lock.
    pub(crate) fn begin(
        self: &Arc<Self>,
        arrived: Instant,
        caller: &Caller,
        wish: Wish,
    ) -> Result<Attempt, Failure> {
        self.permit(caller, Action::Acquire, &wish.name)?;
        let principal = caller.principal();
        let max = wish.ttl.saturating_mul(WAIT_TTLS);
        let wait = wish.wait.unwrap_or(max);
        if wait > max {
            return Err(Failure::WaitTooLong { max });
        }
        let stopping = self.stopping.clone();
        if *stopping.borrow() {
            return Err(Failure::NotReady("stopping".to_owned()));
        }
        let permit = self.waiting.take(caller.account());
        let permit = permit.ok_or(Failure::TooManyWaiters)?;
        self.meters.waiters.inc();
        let waiting = Waiting {
            app: self.clone(),
            _permit: permit,
        };
        let attempt = wait.is_zero();
        let patience = if attempt { TRY_WAIT } else { wait };
        let names = match wish.slots {
            Some(slots) => slot_names(wish.name.bytes(), slots),
            None => vec![wish.name.clone()],
        };
        let longest = names.iter().map(|name| name.bytes().len()).max();
        if longest > Some(self.config.limits.name_bytes) {
            let problem = "the name of the lock is too long for slots, whose names are longer";
            return Err(Failure::BadName(problem));
        }
        let deadline = clock::now().mono + patience;
        let mut wishes = Vec::with_capacity(names.len());
        for name in names {
            let mut acquire = self.detached(principal, name, &wish)?;
            acquire.principal = caller.told();
            acquire.attempt = attempt;
            acquire.deadline = Some(deadline);
            wishes.push(acquire);
        }
        let session = wishes.first().and_then(|wish| wish.detach);
        let session = session.map_or(SessionId(0), |(session, _)| session);
        let work = match wish.slots {
            Some(_) => Work::AcquireAny(wishes),
            None => Work::Acquire(wishes.remove(0)),
        };
        let mut check = tokio::time::interval(CHECK);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Ok(Attempt {
            job: self.driver.begin_for(work, wish.traced),
            app: self.clone(),
            name: wish.name,
            slots: wish.slots,
            mode: wish.mode,
            caller: caller.clone(),
            arrived,
            position: None,
            check,
            blind: 0,
            stopping,
            session: format!("{session:x}"),
            follow: None,
            _waiting: waiting,
        })
    }

    /// A wish for one lock whose hold will live by its handle.
    fn detached(&self, principal: &str, name: Name, wish: &Wish) -> Result<Acquire, Failure> {
        let (session, named) = match &wish.id {
            Some(id) => {
                let session = handle::session_of(principal, name.bytes(), id.as_bytes());
                (session, true)
            }
            None => (SessionId(random()?), false),
        };
        let mut acquire = Acquire::new(name, wish.mode.clone(), wish.ttl);
        acquire.detach = Some((session, named));
        acquire.note = wish.note.as_deref().map(Into::into);
        acquire.owner = Some(label(&wish.owner, self.config.limits.owner_bytes));
        Ok(acquire)
    }

    /// Renews a handle.
    pub(crate) async fn keep(
        &self,
        arrived: Instant,
        caller: &Caller,
        text: &str,
    ) -> Result<Answer, Failure> {
        let handle = self.open(caller, text)?;
        for _ in 0..RENEW_AGAIN.1 {
            match self.keep_once(handle.clone(), caller).await? {
                Some((handle, until)) => {
                    return Ok(self.answer(caller.principal(), &handle, arrived, until));
                }
                None => tokio::time::sleep(RENEW_AGAIN.0).await,
            }
        }
        Err(Failure::Renewing)
    }

    /// Renews a handle; none if another renewal is under way.
    async fn keep_once(
        &self,
        handle: Box<Handle>,
        caller: &Caller,
    ) -> Result<Option<(Box<Handle>, Instant)>, Failure> {
        let ask = handle.ask.clone();
        let mut job = self.driver.begin(Work::Keep(handle, caller.told()));
        loop {
            match job.next().await {
                Some(ClientEvent::Handle(_, handle, until)) => return Ok(Some((handle, until))),
                Some(ClientEvent::Ended(_, ended)) => {
                    return match ended {
                        Ended::Busy => Ok(None),
                        Ended::TimedOut => Err(self.not_kept(&ask).await),
                        Ended::NotHeld
                        | Ended::Released
                        | Ended::Cancelled
                        | Ended::Refused(Refusal::Finished) => Err(Failure::Lost),
                        Ended::Refused(why) => Err(Failure::Refused(why)),
                    };
                }
                Some(ClientEvent::Lost(..)) => return Err(Failure::Lost),
                Some(_) => {}
                None => return Err(Failure::NotReady("stopping".to_owned())),
            }
        }
    }

    /// A renewal got too few answers: it is lost if somebody else is inside. Otherwise nobody can
    /// tell, and its holder may try again until its deadline.
    async fn not_kept(&self, ask: &Ask) -> Failure {
        let group = ask.group().to_string();
        match self.whole_lock(&ask.name, &Caller::itself()).await {
            Ok(whole) => {
                let mut inside = whole.what.holders.iter();
                if inside.any(|holder| holder.certain && holder.group != group) {
                    return Failure::Lost;
                }
                self.no_quorum()
            }
            Err(failure) => failure,
        }
    }

    /// Releases a handle, also one that is not held any more. It says so only when the lock is
    /// free for others.
    pub(crate) async fn release(&self, caller: &Caller, text: &str) -> Result<(), Failure> {
        let handle = self.open(caller, text)?;
        let mut job = self.driver.begin(Work::Finish(handle));
        loop {
            match job.next().await {
                Some(ClientEvent::Ended(_, Ended::Released)) => return Ok(()),
                Some(ClientEvent::Ended(..)) => return Err(Failure::NotReleased),
                Some(_) => {}
                None => return Err(Failure::NotReady("stopping".to_owned())),
            }
        }
    }

    /// The handle that a text is, if it is the caller's.
    fn open(&self, caller: &Caller, text: &str) -> Result<Box<Handle>, Failure> {
        let opened = handle::open(&self.key, caller.principal(), text);
        let opened = opened.map_err(|error| {
            let failure = Failure::from(error);
            if let Some(audit) = &self.audit {
                audit.refused(caller.principal(), None, failure.code(), "api");
            }
            failure
        });
        opened.map(Box::new)
    }

    fn answer(&self, principal: &str, handle: &Handle, arrived: Instant, until: Instant) -> Answer {
        Answer {
            handle: handle::seal(&self.key, principal, handle),
            token: handle.token.0,
            group: Some(handle.ask.group().to_string()),
            slot: None,
            attempts: None,
            arrived,
            until,
            times: self.config.times,
        }
    }

    /// Whether a quorum of nodes for this mode is in reach.
    fn sees_quorum(&self, mode: &Mode) -> bool {
        let reachable = self.driver.reachable();
        self.config.quorums.served_by(mode, reachable)
    }

    fn no_quorum(&self) -> Failure {
        let troubles = self.driver.troubles().into_iter();
        let troubles = troubles.map(|(node, why)| format!("{node}: {why}"));
        Failure::NoQuorum {
            troubles: troubles.take(8).collect(),
        }
    }
}

impl Attempt {
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// What happens next.
    pub(crate) async fn next(&mut self) -> Step {
        loop {
            let happened = tokio::select! {
                event = self.job.next() => Happened::Event(event),
                position = Follow::answer(&mut self.follow) => Happened::Position(position),
                _ = self.check.tick() => Happened::Tick,
                _ = self.stopping.wait_for(|stopping| *stopping) => Happened::Stop,
            };
            let event = match happened {
                Happened::Event(event) => event,
                Happened::Position(Some(position)) if self.position != Some(position) => {
                    self.position = Some(position);
                    return Step::Position(position);
                }
                Happened::Position(_) => continue,
                Happened::Tick => match self.look() {
                    Some(failure) => return Step::over(Err(failure)),
                    None => continue,
                },
                Happened::Stop => None,
            };
            match event {
                Some(ClientEvent::Position(_, position)) => {
                    if self.position.replace(position) != Some(position) {
                        return Step::Position(position);
                    }
                }
                Some(ClientEvent::Handle(_, handle, until)) => {
                    return Step::over(self.taken(handle, until));
                }
                Some(ClientEvent::Ended(_, ended)) => {
                    return Step::over(Err(self.failure(ended).await));
                }
                Some(ClientEvent::Lost(..)) => return Step::over(Err(Failure::TooLate)),
                Some(_) => {}
                None => {
                    let why = "stopping".to_owned();
                    return Step::over(Err(Failure::NotReady(why)));
                }
            }
        }
    }

    /// Waits until it is over.
    pub(crate) async fn over(mut self) -> Result<Taken, Failure> {
        loop {
            if let Step::Over(result) = self.next().await {
                return *result;
            }
        }
    }

    fn taken(&self, handle: Box<Handle>, until: Instant) -> Result<Taken, Failure> {
        let mut answer = self
            .app
            .answer(self.caller.principal(), &handle, self.arrived, until);
        answer.slot = self.slots.and_then(|_| slot_of(&handle.ask.name));
        let guard = Guard::of_lock(self.app.driver.clone(), handle);
        // With nothing left the guard is dropped here, which releases.
        if answer.times(clock::now().mono).is_none() {
            return Err(Failure::TooLate);
        }
        Ok(Taken { answer, guard })
    }

    async fn failure(&mut self, ended: Ended) -> Failure {
        match ended {
            Ended::TimedOut if !self.app.sees_quorum(&self.mode) => self.app.no_quorum(),
            Ended::TimedOut | Ended::Busy => {
                let (app, name, position) = (&self.app, &self.name, self.position);
                let way = match self.slots {
                    Some(slots) => app.in_the_slots(name, slots, &self.caller, position).await,
                    None => app.in_the_way(name, &self.caller, position).await,
                };
                Failure::NotAcquired(Box::new(way))
            }
            Ended::Refused(why) => Failure::Refused(why),
            Ended::Cancelled if self.app.driver.is_hopeless() => self.app.no_quorum(),
            Ended::NotHeld | Ended::Released => Failure::TooLate,
            Ended::Cancelled => Failure::NotAcquired(Box::default()),
        }
    }

    /// From now on the position is told whenever it is found changed, and not only when it is
    /// first known: nodes do not tell everybody when somebody leaves a queue.
    pub(crate) fn followed(mut self) -> Self {
        self.follow = Some(Follow::default());
        self
    }

    /// Asks the nodes for the position, unless they are being asked.
    fn ask_position(&mut self) {
        // Before the first word of a node there is no place in any queue. Of several queues the
        // machine tells the shortest when it changes; asking for all would cost too much.
        if self.position.is_none() || self.slots.is_some() {
            return;
        }
        let Some(Follow(asked @ None)) = &mut self.follow else {
            return;
        };
        let (app, name, session) = (self.app.clone(), self.name.clone(), self.session.clone());
        *asked = Some(Box::pin(async move {
            let whole = app.whole_lock(&name, &Caller::itself()).await.ok()?;
            let waiters = whole.what.waiters.iter();
            let mine = waiters.filter(|waiter| waiter.session == session);
            mine.map(|waiter| waiter.position).max()
        }));
    }

    /// Gives up when the caller's token counts no more, or when no quorum has been in reach for a
    /// while: another node may do better.
    fn look(&mut self) -> Option<Failure> {
        if let Err(failure) = self.app.recognises(&self.caller) {
            return Some(failure);
        }
        self.ask_position();
        if self.app.sees_quorum(&self.mode) {
            self.blind = 0;
            return None;
        }
        self.blind += 1;
        (self.blind > LOST_SIGHT).then(|| self.app.no_quorum())
    }
}

fn random() -> Result<u128, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|_| Failure::NotReady("without random numbers from its system".to_owned()))?;
    Ok(u128::from_le_bytes(bytes))
}
