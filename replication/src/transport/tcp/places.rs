//! How many connections there may be, and which of them are kept for the brokers of the cluster.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ids::BrokerId;

/// Where the other brokers of the cluster are, as far as this process knows.
pub trait Peers: Debug + Send + Sync {
    /// True if one is known at `address`; if a number is named, the broker of that number.
    fn is_at(&self, address: IpAddr, number: Option<BrokerId>) -> bool;
}

/// For a server that knows none.
#[derive(Debug)]
pub(super) struct NoPeers;

impl Peers for NoPeers {
    fn is_at(&self, _: IpAddr, _: Option<BrokerId>) -> bool {
        false
    }
}

/// Connections, by where they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// From addresses at which brokers of the cluster are known.
    pub peers: u64,
    /// From elsewhere.
    pub strangers: u64,
}

impl Counts {
    /// Both together.
    pub fn total(&self) -> u64 {
        self.peers + self.strangers
    }

    fn of(&mut self, is_peer: bool) -> &mut u64 {
        if is_peer {
            &mut self.peers
        } else {
            &mut self.strangers
        }
    }
}

#[derive(Debug, Default)]
struct Taken {
    open: Counts,
    refused: Counts,
}

/// The places of a listener: `most` for whoever comes first, and `reserved` beyond for peers only.
#[derive(Debug)]
pub(super) struct Places {
    most: u64,
    reserved: u64,
    taken: Mutex<Taken>,
}

impl Places {
    pub(super) fn new(most: usize, reserved: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most as u64,
            reserved: reserved as u64,
            taken: Mutex::default(),
        })
    }

    /// A place for one more connection; `None`, and counted as refused, if there is none for it.
    pub(super) fn take(self: &Arc<Self>, is_peer: bool) -> Option<Place> {
        let mut taken = self.taken.lock();
        if taken.open.total() >= self.limit(is_peer) {
            *taken.refused.of(is_peer) += 1;
            return None;
        }
        *taken.open.of(is_peer) += 1;
        let places = self.clone();
        Some(Place { places, is_peer })
    }

    /// Connections among which there is a place for such a one.
    pub(super) fn limit(&self, is_peer: bool) -> u64 {
        self.most + if is_peer { self.reserved } else { 0 }
    }

    pub(super) fn open(&self) -> Counts {
        self.taken.lock().open
    }

    pub(super) fn refused(&self) -> Counts {
        self.taken.lock().refused
    }
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    is_peer: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.places.taken.lock().open.of(self.is_peer) -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_never_have_the_places_of_peers() {
        let places = Places::new(2, 1);
        let stranger = || places.take(false);
        let peer = || places.take(true);
        let mut open = vec![stranger().expect("one of two"), stranger().expect("both")];
        assert!(stranger().is_none());
        open.push(peer().expect("the reserved one"));
        assert!(peer().is_none() && stranger().is_none());
        let refused = Counts {
            peers: 1,
            strangers: 2,
        };
        assert_eq!(places.refused(), refused);
        // A peer that came early leaves its place to anybody.
        open.remove(0);
        assert!(stranger().is_none(), "two are open, and as many may be");
        open.clear();
        assert_eq!(places.open(), Counts::default());
        let _early = [peer().expect("one of two"), peer().expect("both")];
        assert!(stranger().is_none());
        let counts = Counts {
            peers: 2,
            strangers: 0,
        };
        assert_eq!(places.open(), counts);
    }
}
