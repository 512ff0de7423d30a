//! The contract between a machine and whoever drives it.
//!
//! A machine owns no clock, socket, disk, thread or random source. Its driver (the node's thread,
//! the client's task, the simulator, the model checker) repeats:
//!
//! 1. **Take one input**: a message, an opened or closed connection, a command, a completed write,
//!    or a wake-up. After a pause, due wake-ups come before messages.
//! 2. **Read both clocks** and call [`Machine::handle`] with them, the input and empty
//!    [`Effects`].
//! 3. **Persist** the records in order, without waiting.
//! 4. **Send** `send_now` at once, in order.
//! 5. **Keep** `send_durable` back until every record produced up to and including this step is
//!    on disk; then send it, in order, and hand the machine [`Effects::persist`]'s completion as
//!    its `Durable` input.
//! 6. **Tell the caller** the events.
//! 7. **Sleep** until the next input or until [`Machine::next_wake`], whichever is first.
//!
//! Messages to one address keep their order: a machine that has put a message for an address in
//! `send_durable` puts the following ones there too, until it was told `Durable`. A driver may
//! lose a connection at any time, and then loses what was not delivered on it; it never reorders
//! or repeats within a connection.
//!
//! A complete driver, with everything that touches the world behind one small trait:
//!
//! ```
//! use std::collections::VecDeque;
//! use conclave_protocol::{Effects, EffectsOf, Envelope, Machine, Now, Wake};
//!
//! /// The world of a driver: clocks, sockets, a disk and a caller.
//! trait World<M: Machine> {
//!     /// Sleeps until something happens or the wake-up is due; none when it is time to end.
//!     fn next(&mut self, wake: Option<Wake>) -> Option<M::Input>;
//!     fn now(&self) -> Now;
//!     /// Starts to write; `next` says `Durable` when it is done, after `synced` has grown.
//!     fn write(&mut self, records: Vec<M::Record>);
//!     fn synced(&self) -> u64;
//!     fn send(&mut self, envelope: Envelope<M::Address, M::Message>);
//!     fn tell(&mut self, event: M::Event);
//! }
//!
//! fn drive<M: Machine>(machine: &mut M, world: &mut impl World<M>) {
//!     let mut out: EffectsOf<M> = Effects::new();
//!     let mut written = 0;
//!     let mut parked = VecDeque::new();
//!     while let Some(input) = world.next(machine.next_wake()) {
//!         // What waited for the disk leaves before the machine learns that it may overtake.
//!         while parked.front().is_some_and(|(needs, _)| *needs <= world.synced()) {
//!             let (_, envelope) = parked.pop_front().expect("just seen");
//!             world.send(envelope);
//!         }
//!         machine.handle(world.now(), input, &mut out);
//!         written += out.persist.len() as u64;
//!         world.write(std::mem::take(&mut out.persist));
//!         out.send_now.drain(..).for_each(|envelope| world.send(envelope));
//!         parked.extend(out.send_durable.drain(..).map(|envelope| (written, envelope)));
//!         out.events.drain(..).for_each(|event| world.tell(event));
//!     }
//! }
//! ```

use crate::time::{Now, Wake};

/// A message and the address it goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<A, M> {
    /// Whom it is for.
    pub to: A,
    /// What it says.
    pub message: M,
}

/// What a step asks its driver to do. The driver empties it between steps and may reuse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effects<A, M, R, E> {
    /// Records to write to disk, in order.
    pub persist: Vec<R>,
    /// Messages that may leave now.
    pub send_now: Vec<Envelope<A, M>>,
    /// Messages that leave once all records so far are on disk.
    pub send_durable: Vec<Envelope<A, M>>,
    /// What the caller or an observer is told.
    pub events: Vec<E>,
}

impl<A, M, R, E> Effects<A, M, R, E> {
    /// No effects yet.
    pub const fn new() -> Self {
        Self {
            persist: Vec::new(),
            send_now: Vec::new(),
            send_durable: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Forgets all effects and keeps the memory.
    pub fn clear(&mut self) {
        self.persist.clear();
        self.send_now.clear();
        self.send_durable.clear();
        self.events.clear();
    }

    /// Asks for `message` to leave now.
    pub fn send(&mut self, to: A, message: M) {
        self.send_now.push(Envelope { to, message });
    }
}

impl<A, M, R, E> Default for Effects<A, M, R, E> {
    fn default() -> Self {
        Self::new()
    }
}

/// A pure state machine: one input in, effects out.
pub trait Machine {
    /// What it can be told.
    type Input;
    /// Whom it can send to.
    type Address;
    /// What it sends.
    type Message;
    /// What it writes to disk.
    type Record;
    /// What it tells its caller.
    type Event;

    /// Takes one step. Any input is safe at any time: one that does not fit is ignored or
    /// answered with a refusal.
    fn handle(&mut self, now: Now, input: Self::Input, out: &mut EffectsOf<Self>);

    /// When it must be woken at the latest, if at all. Being woken early or twice does no harm.
    fn next_wake(&self) -> Option<Wake>;
}

/// The effects of a machine.
pub type EffectsOf<T> = Effects<
    <T as Machine>::Address,
    <T as Machine>::Message,
    <T as Machine>::Record,
    <T as Machine>::Event,
>;
