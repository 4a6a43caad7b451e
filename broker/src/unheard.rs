//! Connections that have not said yet what they want. Where all places are taken, the one that has been
//! silent for longest makes room for who comes: to open a connection costs a stranger nothing.
//!
//! It is one of the address that has most of them. So who opens many shuts out nobody at another address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Where a connection comes from, as far as limits go: an IPv4 address, or the /64 of an IPv6 address, all of which one
/// machine may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(u64);

/// The first bits of an IPv6 address that stand for a machine.
const MACHINE_BITS: u32 = 64;

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            // Below all addresses of IPv6 that anybody has.
            IpAddr::V4(address) => Self(u64::from(address.to_bits())),
            IpAddr::V6(address) => Self((address.to_bits() >> MACHINE_BITS) as u64),
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    all: HashMap<u64, Source>,
    by_source: HashMap<Source, BTreeMap<u64, oneshot::Sender<()>>>,
}

impl Waiting {
    fn remove(&mut self, number: u64) -> Option<oneshot::Sender<()>> {
        let source = self.all.remove(&number)?;
        let of_source = self.by_source.get_mut(&source)?;
        let want = of_source.remove(&number);
        if of_source.is_empty() {
            self.by_source.remove(&source);
        }
        want
    }

    fn end(&mut self, number: u64) {
        if let Some(want) = self.remove(number) {
            // It may just have ended by itself: its place is free all the same.
            let _ = want.send(());
        }
    }
}

/// The silent ones.
#[derive(Debug, Default)]
pub struct Unheard(Mutex<Waiting>);

/// Told when a silent connection's place is wanted.
#[derive(Debug)]
pub struct Wanted(oneshot::Receiver<()>);

impl Wanted {
    /// Waits until its place is wanted; for ever, once it was heard.
    pub async fn wait(self) {
        if self.0.await.is_err() {
            std::future::pending().await
        }
    }
}

impl Unheard {
    /// One more, until it [leaves](Self::leave).
    pub(crate) fn enter(&self, source: Source) -> (u64, Wanted) {
        let (want, wanted) = oneshot::channel();
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.insert(number, source);
        let of_source = waiting.by_source.entry(source).or_default();
        of_source.insert(number, want);
        (number, Wanted(wanted))
    }

    /// It was heard, or has ended.
    pub(crate) fn leave(&self, number: u64) {
        self.0.lock().remove(number);
    }

    /// Of the source that has most of them, and of several such the one that began first, ends the one that has been
    /// silent for longest; false if there is none. Looks at every source.
    pub(crate) fn end_oldest(&self) -> bool {
        let mut waiting = self.0.lock();
        let oldest = waiting.by_source.values().filter_map(|of_source| {
            let (number, _) = of_source.first_key_value()?;
            Some((of_source.len(), std::cmp::Reverse(*number)))
        });
        let Some((_, std::cmp::Reverse(number))) = oldest.max() else {
            return false;
        };
        waiting.end(number);
        true
    }

    /// Ends the one of `source` that has been silent for longest; false if it has none.
    pub(crate) fn end_oldest_of(&self, source: Source) -> bool {
        let mut waiting = self.0.lock();
        let of_source = waiting.by_source.get(&source);
        let Some((&number, _)) = of_source.and_then(BTreeMap::first_key_value) else {
            return false;
        };
        waiting.end(number);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        address.parse::<IpAddr>().expect("an address").into()
    }

    #[tokio::test]
    async fn the_oldest_that_was_not_heard_makes_room() {
        let unheard = Unheard::default();
        assert!(!unheard.end_oldest());
        let at = source("192.0.2.1");
        let (heard, _kept) = unheard.enter(at);
        let (_, oldest) = unheard.enter(at);
        let (_, newest) = unheard.enter(at);
        unheard.leave(heard);
        assert!(unheard.end_oldest());
        oldest.wait().await;
        assert!(unheard.end_oldest());
        newest.wait().await;
        assert!(!unheard.end_oldest());
    }

    #[tokio::test]
    async fn who_has_most_makes_room_and_not_who_has_one() {
        let unheard = Unheard::default();
        let (alone, crowd) = (source("192.0.2.1"), source("2001:db8::1"));
        let (honest, kept) = unheard.enter(alone);
        let (_, first) = unheard.enter(crowd);
        let (_, second) = unheard.enter(crowd);
        assert!(unheard.end_oldest());
        first.wait().await;
        assert!(!unheard.end_oldest_of(source("192.0.2.2")));
        assert!(unheard.end_oldest_of(crowd));
        second.wait().await;
        assert!(unheard.end_oldest());
        kept.wait().await;
        unheard.leave(honest);
        let waiting = unheard.0.lock();
        assert!(waiting.all.is_empty() && waiting.by_source.is_empty());
    }

    #[test]
    fn one_machine_is_one_source() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_ne!(source("127.0.0.1"), source("::1"));
    }
}
