//! Something scarce, shared by callers of whom nothing but the address is known. Who is silent on
//! purpose costs only itself: beyond a limit the oldest share of the address that has most is
//! dropped, so that a newcomer from anywhere is always let in.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// Something that is shared.
#[derive(Clone, Debug)]
pub(crate) struct FairShare(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: usize,
    max_per_address: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// The number of the next share: the oldest has the smallest.
    next: u64,
    used: usize,
    addresses: BTreeMap<IpAddr, Holdings>,
}

/// What one address has.
#[derive(Debug, Default)]
struct Holdings {
    used: usize,
    shares: BTreeMap<u64, Entry>,
}

/// One share; its holder learns of its end when this is dropped.
#[derive(Debug)]
struct Entry {
    weight: usize,
    _alive: oneshot::Sender<()>,
}

impl FairShare {
    /// At most so much for all, and for each address.
    pub(crate) fn new(max: usize, max_per_address: usize) -> Self {
        Self(Arc::new(Shared {
            max,
            max_per_address,
            table: Mutex::default(),
        }))
    }

    /// Takes a share; others may be dropped for it.
    pub(crate) fn join(&self, address: IpAddr, weight: usize) -> Share {
        let (alive, dropped) = oneshot::channel();
        let address = network(address);
        let mut table = self.0.lock();
        let number = table.next;
        table.next += 1;
        let holdings = table.addresses.entry(address).or_default();
        let entry = Entry {
            weight: 0,
            _alive: alive,
        };
        holdings.shares.insert(number, entry);
        drop(table);
        let share = Share {
            of: self.clone(),
            address,
            number,
            dropped: Some(dropped),
        };
        share.grow(weight);
        share
    }

    /// How much is taken.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.0.lock().used
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Takes a share out of the table.
    fn remove(&mut self, address: IpAddr, number: u64) {
        let Some(holdings) = self.addresses.get_mut(&address) else {
            return;
        };
        if let Some(entry) = holdings.shares.remove(&number) {
            holdings.used -= entry.weight;
            self.used -= entry.weight;
        }
        if holdings.shares.is_empty() {
            self.addresses.remove(&address);
        }
    }

    /// Drops the oldest share of an address.
    fn drop_oldest(&mut self, address: IpAddr) {
        let holdings = self.addresses.get(&address);
        let oldest = holdings.and_then(|all| all.shares.keys().next().copied());
        if let Some(oldest) = oldest {
            self.remove(address, oldest);
        }
    }

    /// Drops shares until the limits are kept; those of `address` may just have grown.
    fn trim(&mut self, address: IpAddr, max: usize, max_per_address: usize) {
        let used = |table: &Self| table.addresses.get(&address).map_or(0, |all| all.used);
        while used(self) > max_per_address {
            self.drop_oldest(address);
        }
        while self.used > max {
            let most = self.addresses.iter().max_by_key(|(_, all)| all.used);
            let Some((&most, _)) = most else { return };
            self.drop_oldest(most);
        }
    }
}

/// A share. It ends when this is dropped, or before if others need it.
#[derive(Debug)]
pub(crate) struct Share {
    of: FairShare,
    address: IpAddr,
    number: u64,
    /// None once it is known to have been dropped.
    dropped: Option<oneshot::Receiver<()>>,
}

impl Share {
    /// Takes more; this share may be one of those that are dropped for it.
    pub(crate) fn grow(&self, weight: usize) {
        let shared = &self.of.0;
        let mut table = shared.lock();
        let Some(holdings) = table.addresses.get_mut(&self.address) else {
            return;
        };
        let Some(entry) = holdings.shares.get_mut(&self.number) else {
            return;
        };
        entry.weight += weight;
        holdings.used += weight;
        table.used += weight;
        table.trim(self.address, shared.max, shared.max_per_address);
    }

    /// Is ready when the share has been dropped for others.
    pub(crate) fn poll_dropped(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(dropped) = &mut self.dropped else {
            return Poll::Ready(());
        };
        // Nothing is ever sent: it ends with its sender.
        let ended = Pin::new(dropped).poll(cx).map(|_| ());
        if ended.is_ready() {
            self.dropped = None;
        }
        ended
    }

    /// Returns when the share has been dropped for others.
    pub(crate) async fn dropped(&mut self) {
        poll_fn(|cx| self.poll_dropped(cx)).await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.0.lock().remove(self.address, self.number);
    }
}

/// What counts as one address: whoever has an IPv6 address mostly has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = address.to_bits() >> 64 << 64;
            Ipv6Addr::from_bits(prefix).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn at(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_dropped(share: &mut Share) -> bool {
        share.dropped().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_of_the_greediest_address_goes() {
        let shares = FairShare::new(4, 3);
        let mut greedy: Vec<Share> = (0..3).map(|_| shares.join(at(1), 1)).collect();
        let mut modest = shares.join(at(2), 1);
        assert!(greedy.iter_mut().all(|share| !is_dropped(share)));
        // One too many of one address, then one too many of all.
        greedy.push(shares.join(at(1), 1));
        let mut last = shares.join(at(3), 1);
        let gone: Vec<bool> = greedy.iter_mut().map(is_dropped).collect();
        assert_eq!(gone, [true, true, false, false]);
        assert!(is_dropped(&mut greedy[0]), "it can be asked again");
        assert!(!is_dropped(&mut modest) && !is_dropped(&mut last));
        assert_eq!(shares.used(), 4);
        drop((greedy, modest, last));
        assert_eq!(shares.used(), 0);
        assert!(shares.0.lock().addresses.is_empty());
    }

    #[test]
    fn shares_that_grow_are_weighed() {
        let shares = FairShare::new(100, 60);
        let mut first = shares.join(at(1), 10);
        let mut second = shares.join(at(1), 10);
        second.grow(40);
        assert!(!is_dropped(&mut first));
        second.grow(1);
        assert!(is_dropped(&mut first) && !is_dropped(&mut second));
        first.grow(50);
        assert_eq!(shares.used(), 51);
        // Larger than allowed all by itself.
        second.grow(10);
        assert!(is_dropped(&mut second));
        assert_eq!(shares.used(), 0);
    }

    #[test]
    fn a_network_of_one_owner_is_one_address() {
        let one = network("2001:db8:1:2::1".parse().unwrap());
        assert_eq!(one, network("2001:db8:1:2:ffff::9".parse().unwrap()));
        assert_ne!(one, network("2001:db8:1:3::1".parse().unwrap()));
        assert_eq!(network("::ffff:192.0.2.7".parse().unwrap()), at(7));
        assert_ne!(network(at(7)), network(at(8)));
    }
}
