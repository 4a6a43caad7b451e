//! Connections that have not said yet what they want. Where all places are taken, the one that has been
//! silent for longest makes room for who comes: to open a connection costs a stranger nothing.
//!
//! It is one of the address that has most of them. So who opens many shuts out nobody at another address. Where clients must
//! prove who they are, the same goes for the memory that they hold until then: all of them together have a limit, and the
//! address that holds most makes room. What TLS handshakes hold, and requests over HTTP, is part of it: those have no place
//! among the connections here.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::config::{Listener, Via};

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

/// One part of so many of the bytes is kept for sources that hold little,
const KEPT: u64 = 4;
/// and who holds no more than one part of so many holds little.
const LITTLE: u64 = 64;
/// Sources that hold no more than this hold the same: about as much as one connection may.
const OF_ONE: u64 = 64 << 10;

#[derive(Debug)]
struct One {
    want: oneshot::Sender<()>,
    bytes: u64,
    /// Where it came in, if it has a place among the connections. Others hold bytes, and nothing else.
    place: Option<Via>,
}

/// Among which silent connections one is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// All that have a place.
    All,
    /// Those of Kafka's clients.
    Kafka,
    /// Those at the addresses of a name.
    Named(&'static str),
}

impl Among {
    fn has(self, place: Option<Via>) -> bool {
        place.is_some_and(|place| match self {
            Self::All => true,
            Self::Kafka => place.listener == Listener::Kafka,
            Self::Named(name) => place.name == Some(name),
        })
    }
}

#[derive(Debug, Default)]
struct OfSource {
    waiting: BTreeMap<u64, One>,
    bytes: u64,
    /// Those that have a place.
    places: usize,
    /// Those of them that are Kafka's clients.
    of_kafka: usize,
}

impl OfSource {
    /// How many of those there are that are looked among.
    fn places(&self, among: Among) -> usize {
        match among {
            Among::All => self.places,
            Among::Kafka => self.of_kafka,
            Among::Named(_) => {
                let all = self.waiting.values();
                all.filter(|one| among.has(one.place)).count()
            }
        }
    }

    /// Which of them began first.
    fn first(&self, among: Among) -> Option<u64> {
        if self.places(among) == 0 {
            return None;
        }
        let mut places = self.waiting.iter().filter(|(_, one)| among.has(one.place));
        places.next().map(|(number, _)| *number)
    }

    fn count(&mut self, place: Option<Via>, change: impl Fn(&mut usize)) {
        if Among::All.has(place) {
            change(&mut self.places);
        }
        if Among::Kafka.has(place) {
            change(&mut self.of_kafka);
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    all: HashMap<u64, Source>,
    by_source: HashMap<Source, OfSource>,
    /// What those that were told to end hold until they have left.
    ending: HashMap<u64, u64>,
    ending_bytes: u64,
    /// What all hold, those that end included.
    bytes: u64,
}

impl Waiting {
    fn remove(&mut self, number: u64) -> Option<One> {
        let source = self.all.remove(&number)?;
        let of_source = self.by_source.get_mut(&source)?;
        let one = of_source.waiting.remove(&number)?;
        of_source.bytes -= one.bytes;
        of_source.count(one.place, |places| *places -= 1);
        if of_source.waiting.is_empty() {
            self.by_source.remove(&source);
        }
        Some(one)
    }

    /// Returns what it held, and where it has a place.
    fn end(&mut self, number: u64) -> (u64, Option<Via>) {
        let Some(One { want, bytes, place }) = self.remove(number) else {
            return (0, None);
        };
        if bytes > 0 {
            self.ending.insert(number, bytes);
            self.ending_bytes += bytes;
        }
        // It may just have ended by itself: its place is free all the same.
        let _ = want.send(());
        (bytes, place)
    }

    fn leave(&mut self, number: u64) {
        match self.remove(number) {
            Some(one) => self.bytes -= one.bytes,
            None => {
                let bytes = self.ending.remove(&number).unwrap_or_default();
                self.ending_bytes -= bytes;
                self.bytes -= bytes;
            }
        }
    }

    /// Of the source that holds most, and of several such the one that began first, the connection that began first among
    /// those that hold at least half of what is usual there: a small one makes no room.
    fn heaviest(&self) -> Option<u64> {
        let sources = self.by_source.values().filter(|source| source.bytes > 0);
        let heaviest = sources.max_by_key(|source| {
            let first = source.waiting.first_key_value();
            let first = first.map(|(number, _)| std::cmp::Reverse(*number));
            (source.bytes.max(OF_ONE).next_power_of_two(), first)
        })?;
        let usual = heaviest.bytes / heaviest.waiting.len() as u64;
        let mut all = heaviest.waiting.iter();
        let found = all.find(|(_, one)| one.bytes > 0 && one.bytes * 2 >= usual);
        found.map(|(number, _)| *number)
    }
}

/// The silent ones.
#[derive(Debug, Default)]
pub struct Unheard {
    waiting: Mutex<Waiting>,
    /// Bytes that all of them may hold together.
    most_bytes: u64,
    /// Those that were ended because of that.
    ended: AtomicU64,
}

/// Told when a silent connection's place is wanted.
#[derive(Debug)]
pub struct Wanted(oneshot::Receiver<()>);

impl Wanted {
    /// Waits until its place is wanted; for ever, once it was heard.
    pub async fn wait(mut self) {
        self.ends().await;
    }

    /// The same, and it may be asked again if it is given up before.
    async fn ends(&mut self) {
        if (&mut self.0).await.is_err() {
            std::future::pending().await
        }
    }

    /// Lets as much time pass; false if its place is wanted before.
    pub(crate) async fn keeps_for(&mut self, time: Duration) -> bool {
        if time.is_zero() {
            return true;
        }
        tokio::select! {
            () = self.ends() => false,
            () = tokio::time::sleep(time) => true,
        }
    }

    /// True once another connection needs the place. Until then the task of `context` is woken when one does.
    pub(crate) fn is_wanted(&mut self, context: &mut Context<'_>) -> bool {
        matches!(Pin::new(&mut self.0).poll(context), Poll::Ready(Ok(())))
    }
}

/// Bytes that somebody holds who has not proved who it is, and has no place among the connections.
#[derive(Debug)]
pub(crate) struct Strange {
    unheard: Arc<Unheard>,
    number: u64,
}

impl Strange {
    /// Holds nothing yet.
    pub(crate) fn enter(unheard: &Arc<Unheard>, source: Source) -> (Self, Wanted) {
        let (number, wanted) = unheard.enter_with(source, None);
        let unheard = unheard.clone();
        (Self { unheard, number }, wanted)
    }

    /// It holds so many bytes. If there are too many, another makes room, or it is told to end itself.
    pub(crate) fn holds(&self, bytes: usize) {
        self.unheard.hold(self.number, bytes, true);
    }
}

impl Drop for Strange {
    fn drop(&mut self) {
        self.unheard.leave(self.number);
    }
}

impl Unheard {
    /// Those that [hold](Self::hold) something may hold so many bytes together.
    pub(crate) fn with_most(most_bytes: u64) -> Self {
        Self {
            most_bytes,
            ..Self::default()
        }
    }

    /// One more, until it [leaves](Self::leave).
    pub(crate) fn enter(&self, source: Source, via: Via) -> (u64, Wanted) {
        self.enter_with(source, Some(via))
    }

    fn enter_with(&self, source: Source, place: Option<Via>) -> (u64, Wanted) {
        let (want, wanted) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.insert(number, source);
        let of_source = waiting.by_source.entry(source).or_default();
        of_source.count(place, |places| *places += 1);
        let one = One {
            want,
            bytes: 0,
            place,
        };
        of_source.waiting.insert(number, one);
        (number, Wanted(wanted))
    }

    /// It was heard, or has ended.
    pub(crate) fn leave(&self, number: u64) {
        self.waiting.lock().leave(number);
    }

    /// It wants to hold so many bytes in all. False: it may not yet, and is to ask again; others are told to end for it. With
    /// `at_once` it holds them already, and others make room afterwards.
    ///
    /// A part of all bytes is for sources that hold little. So who holds much, from however many connections, waits before
    /// others do.
    pub(crate) fn hold(&self, number: u64, bytes: usize, at_once: bool) -> bool {
        let bytes = bytes as u64;
        let mut waiting = self.waiting.lock();
        let Some(source) = waiting.all.get(&number).copied() else {
            // It was told to end.
            return false;
        };
        let Some(of_source) = waiting.by_source.get_mut(&source) else {
            return false;
        };
        let after = |before: u64, from: u64| before - from + bytes;
        let before = of_source.waiting.get(&number).map_or(0, |one| one.bytes);
        let is_little = after(of_source.bytes, before) <= self.most_bytes / LITTLE;
        let most = match is_little {
            true => self.most_bytes,
            false => self.most_bytes - self.most_bytes / KEPT,
        };
        let may = bytes <= before || after(waiting.bytes, before) <= most;
        if may || at_once {
            waiting.bytes = after(waiting.bytes, before);
            if let Some(of_source) = waiting.by_source.get_mut(&source) {
                of_source.bytes = after(of_source.bytes, before);
                if let Some(one) = of_source.waiting.get_mut(&number) {
                    one.bytes = bytes;
                }
            }
        }
        if may {
            return true;
        }
        // What there will be once those have left that were told to.
        let mut stays = match at_once {
            true => waiting.bytes,
            false => after(waiting.bytes, before),
        } - waiting.ending_bytes;
        while stays > most {
            let Some(heaviest) = waiting.heaviest() else {
                break;
            };
            stays -= waiting.end(heaviest).0;
            self.ended.fetch_add(1, Ordering::Relaxed);
            if heaviest == number {
                break;
            }
        }
        at_once && waiting.all.contains_key(&number)
    }

    /// Bytes that they hold together.
    pub(crate) fn bytes(&self) -> u64 {
        self.waiting.lock().bytes
    }

    /// How many were ended because they held too much together.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Of the source that has most of them, and of several such the one that began first, ends the one that has been
    /// silent for longest, `among` which only count. Where it came in; `None` if there is none. Looks at every source.
    pub(crate) fn end_oldest(&self, among: Among) -> Option<Via> {
        let mut waiting = self.waiting.lock();
        let oldest = waiting.by_source.values().filter_map(|of_source| {
            let number = of_source.first(among)?;
            Some((of_source.places(among), std::cmp::Reverse(number)))
        });
        let (_, std::cmp::Reverse(number)) = oldest.max()?;
        waiting.end(number).1
    }

    /// Ends the one of `source` that has been silent for longest. Where it came in; `None` if it has none.
    pub(crate) fn end_oldest_of(&self, source: Source) -> Option<Via> {
        let mut waiting = self.waiting.lock();
        let number = waiting.by_source.get(&source)?.first(Among::All)?;
        waiting.end(number).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIA: Via = Via::new(Listener::Native, None);
    const KAFKA: Via = Via::new(Listener::Kafka, None);

    fn source(address: &str) -> Source {
        address.parse::<IpAddr>().expect("an address").into()
    }

    #[tokio::test]
    async fn the_oldest_that_was_not_heard_makes_room() {
        let unheard = Unheard::default();
        assert_eq!(unheard.end_oldest(Among::All), None);
        let at = source("192.0.2.1");
        let (heard, _kept) = unheard.enter(at, VIA);
        let (_, oldest) = unheard.enter(at, VIA);
        let (_, newest) = unheard.enter(at, VIA);
        unheard.leave(heard);
        assert_eq!(unheard.end_oldest(Among::All), Some(VIA));
        oldest.wait().await;
        assert_eq!(unheard.end_oldest(Among::All), Some(VIA));
        newest.wait().await;
        assert_eq!(unheard.end_oldest(Among::All), None);
    }

    #[tokio::test]
    async fn who_has_most_makes_room_and_not_who_has_one() {
        let unheard = Unheard::default();
        let (alone, crowd) = (source("192.0.2.1"), source("2001:db8::1"));
        let (honest, kept) = unheard.enter(alone, VIA);
        let (_, first) = unheard.enter(crowd, VIA);
        let (_, second) = unheard.enter(crowd, VIA);
        assert_eq!(unheard.end_oldest(Among::All), Some(VIA));
        first.wait().await;
        assert_eq!(unheard.end_oldest_of(source("192.0.2.2")), None);
        assert_eq!(unheard.end_oldest_of(crowd), Some(VIA));
        second.wait().await;
        assert_eq!(unheard.end_oldest(Among::All), Some(VIA));
        kept.wait().await;
        unheard.leave(honest);
        let waiting = unheard.waiting.lock();
        assert!(waiting.all.is_empty() && waiting.by_source.is_empty());
    }

    #[tokio::test]
    async fn one_of_kafkas_clients_makes_room_for_another() {
        let unheard = Unheard::default();
        let (few, many) = (source("192.0.2.1"), source("192.0.2.2"));
        let _native: Vec<_> = (0..3).map(|_| unheard.enter(few, VIA)).collect();
        let (left, _left) = unheard.enter(many, KAFKA);
        let (_, first) = unheard.enter(many, KAFKA);
        let (_, second) = unheard.enter(few, KAFKA);
        unheard.leave(left);
        for silent in [first, second] {
            assert_eq!(unheard.end_oldest(Among::Kafka), Some(KAFKA));
            silent.wait().await;
        }
        assert_eq!(unheard.end_oldest(Among::Kafka), None);
        assert_eq!(unheard.end_oldest(Among::All), Some(VIA));
    }

    const MOST: u64 = 16 << 20;
    const WHOLE: usize = 128 << 10;

    /// Connections of one source that hold a whole message each, as many as may.
    fn full(unheard: &Unheard, at: Source) -> Vec<(u64, Wanted)> {
        let enter = || unheard.enter(at, VIA);
        let fits = |(number, _): &(u64, Wanted)| unheard.hold(*number, WHOLE, false);
        std::iter::repeat_with(enter).take_while(fits).collect()
    }

    #[test]
    fn who_holds_much_leaves_a_part_for_those_that_hold_little() {
        let unheard = Unheard::with_most(MOST);
        let (crowd, alone) = (source("192.0.2.1"), source("192.0.2.2"));
        let held = full(&unheard, crowd);
        let most = MOST - MOST / KEPT;
        assert_eq!(held.len() as u64, most / WHOLE as u64);
        assert_eq!(unheard.bytes(), most);
        // Who came last was told to wait, and the first one makes room for it.
        assert_eq!(unheard.ended(), 1);
        // Another address has room at once, and nobody has to go for it.
        let (honest, mut kept) = unheard.enter(alone, VIA);
        assert!(unheard.hold(honest, WHOLE, false));
        assert_eq!(unheard.ended(), 1);
        assert!(kept.0.try_recv().is_err());
        // As much as is little, and no more while all is taken.
        let (more, _more) = unheard.enter(alone, VIA);
        assert!(unheard.hold(more, WHOLE, false));
        let (over, _over) = unheard.enter(alone, VIA);
        assert!(!unheard.hold(over, WHOLE, false));
        unheard.leave(honest);
        assert!(unheard.hold(over, WHOLE, false));
    }

    #[test]
    fn room_is_there_once_those_have_left_that_were_told_to() {
        let unheard = Unheard::with_most(MOST);
        let at = source("192.0.2.1");
        let mut held = full(&unheard, at);
        let (late, _late) = unheard.enter(at, VIA);
        // Asked again and again, it has as much room made as it needs, and no more.
        for _ in 0..10 {
            assert!(!unheard.hold(late, WHOLE, false));
        }
        assert_eq!(unheard.ended(), 1);
        let (first, mut wanted) = held.remove(0);
        wanted.0.try_recv().expect("the first one is told");
        assert!(!unheard.hold(first, 1, false), "it holds no more");
        unheard.leave(first);
        assert!(unheard.hold(late, WHOLE, false));
        held.iter().for_each(|(number, _)| unheard.leave(*number));
        unheard.leave(late);
        assert!(!unheard.hold(late, 1, false));
        // What was entered and holds nothing.
        let waiting = unheard.waiting.lock();
        assert_eq!((waiting.bytes, waiting.ending_bytes), (0, 0));
        assert!(waiting.ending.is_empty());
    }

    #[test]
    fn a_small_one_makes_no_room_and_a_large_one_may_be_the_one_that_asks() {
        let unheard = Unheard::with_most(MOST);
        let at = source("192.0.2.1");
        let (small, mut kept) = unheard.enter(at, VIA);
        assert!(unheard.hold(small, 2 << 10, true));
        let held = full(&unheard, at);
        assert!(kept.0.try_recv().is_err());
        assert!(unheard.hold(small, 2 << 10, false));
        // What it holds already it holds, whatever others have to do about it.
        let (large, mut wanted) = unheard.enter(source("192.0.2.9"), VIA);
        assert!(!unheard.hold(large, 2 * MOST as usize, true));
        wanted.0.try_recv().expect("it is told to end");
        unheard.leave(large);
        let stay = held
            .iter()
            .filter(|(number, _)| unheard.waiting.lock().all.contains_key(number));
        assert!(stay.count() >= held.len() - 1, "the others stay");
    }

    #[test]
    fn many_addresses_with_one_each_make_room_by_age() {
        let unheard = Unheard::with_most(MOST);
        let mut held = Vec::new();
        for number in 0.. {
            let (one, wanted) = unheard.enter(Source(number), VIA);
            held.push((one, wanted));
            // An honest one among them holds more than the others do.
            let bytes = if number == 100 { 20 << 10 } else { 10 << 10 };
            if !unheard.hold(one, bytes, false) {
                break;
            }
        }
        assert_eq!(unheard.ended(), 1);
        held[0].1.0.try_recv().expect("the first one is told");
        assert!(held[100].1.0.try_recv().is_err());
    }

    #[tokio::test]
    async fn bytes_without_a_place_make_room_for_bytes_alone() {
        let unheard = Arc::new(Unheard::with_most(MOST));
        let at = source("192.0.2.1");
        let (strange, wanted) = Strange::enter(&unheard, at);
        assert_eq!(unheard.end_oldest(Among::All), None);
        assert_eq!(unheard.end_oldest_of(at), None);
        let (_, first) = unheard.enter(at, VIA);
        strange.holds(WHOLE);
        assert_eq!(unheard.end_oldest(Among::All), Some(VIA));
        first.wait().await;
        let _held = full(&unheard, at);
        // The oldest that holds something.
        wanted.wait().await;
        assert_eq!(unheard.ended(), 1);
        let before = unheard.bytes();
        drop(strange);
        assert_eq!(unheard.bytes(), before - WHOLE as u64);
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
