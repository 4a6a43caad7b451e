//! Who waits for which reply.

use kera_protocol::frame::Frame;
use tokio::sync::oneshot;

use crate::error::ConnectionError;

/// Whom a reply goes to.
pub(super) enum Pending {
    /// An awaiting caller.
    Call(oneshot::Sender<Result<Frame, ConnectionError>>),
    /// The connection's sink, with the request's token.
    Sink(u64),
}

/// A correlation is a place in the table and that place's use count, so that a reply which comes
/// twice finds nobody. Never 0: pushed frames carry that.
const PLACE_BITS: u32 = 20;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

struct Place {
    uses: u32,
    pending: Option<Pending>,
}

/// The requests of a connection that wait for replies.
pub(super) struct PendingTable {
    places: Vec<Place>,
    free: Vec<u32>,
    limit: usize,
    closed: Option<ConnectionError>,
}

impl PendingTable {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            limit: limit.min(PLACE_MASK as usize),
            closed: None,
        }
    }

    /// Why the connection has ended, if it has.
    pub(super) fn closed(&self) -> Option<&ConnectionError> {
        self.closed.as_ref()
    }

    /// Requests that wait.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Registers a request; `None` at the limit.
    pub(super) fn insert(&mut self, pending: Pending) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.places.len() < self.limit => {
                self.places.push(Place {
                    uses: 0,
                    pending: None,
                });
                self.places.len() as u32 - 1
            }
            None => return None,
        };
        let place = &mut self.places[index as usize];
        place.uses = place.uses.wrapping_add(1);
        place.pending = Some(pending);
        // Place numbers start at 1 here, which keeps the correlation from being 0.
        Some((place.uses << PLACE_BITS) | (index + 1))
    }

    /// Takes the request of `correlation`; `None` if there is none, or no longer.
    pub(super) fn take(&mut self, correlation: u32) -> Option<Pending> {
        let index = (correlation & PLACE_MASK).checked_sub(1)?;
        let place = self.places.get_mut(index as usize)?;
        if place.uses << PLACE_BITS != correlation & !PLACE_MASK {
            return None;
        }
        let pending = place.pending.take()?;
        self.free.push(index);
        Some(pending)
    }

    /// Ends the table and takes out all that wait, in no order; `None` if it had ended before.
    pub(super) fn close(&mut self, error: ConnectionError) -> Option<Vec<Pending>> {
        if self.closed.is_some() {
            return None;
        }
        self.closed = Some(error);
        self.free.clear();
        let places = std::mem::take(&mut self.places);
        Some(
            places
                .into_iter()
                .filter_map(|place| place.pending)
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(pending: Option<Pending>) -> Option<u64> {
        match pending {
            Some(Pending::Sink(token)) => Some(token),
            _ => None,
        }
    }

    #[test]
    fn replies_find_their_request_once() {
        let mut table = PendingTable::new(10);
        let first = table.insert(Pending::Sink(1)).unwrap();
        let second = table.insert(Pending::Sink(2)).unwrap();
        assert_ne!(first, 0);
        assert_eq!(token(table.take(second)), Some(2));
        assert_eq!(token(table.take(second)), None);
        let third = table.insert(Pending::Sink(3)).unwrap();
        assert_ne!(
            third, second,
            "the place is used again, the correlation not"
        );
        assert_eq!(token(table.take(second)), None);
        assert_eq!(token(table.take(first)), Some(1));
        assert_eq!(token(table.take(third)), Some(3));
        for unknown in [0, 1, u32::MAX] {
            assert_eq!(token(table.take(unknown)), None);
        }
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn no_more_than_the_limit_wait_and_all_learn_of_the_end() {
        let mut table = PendingTable::new(2);
        assert!(table.insert(Pending::Sink(1)).is_some());
        assert!(table.insert(Pending::Sink(2)).is_some());
        assert!(table.insert(Pending::Sink(3)).is_none());
        let error = ConnectionError::Closed {
            address: "a:1".into(),
        };
        assert_eq!(table.close(error.clone()).map(|all| all.len()), Some(2));
        assert!(table.close(error).is_none());
        assert!(table.closed().is_some());
    }
}
