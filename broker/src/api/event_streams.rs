//! Places for those who are told news: a number for all, and for one user a part of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::error::{ErrorCode, WireError};
use parking_lot::Mutex;

/// A user has at most one place of so many, and always one.
const SHARE: usize = 4;

/// Places, as many as `api.max_event_streams`.
pub(crate) struct EventStreams {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Places that were ever taken.
    so_far: u32,
    of_users: HashMap<Arc<str>, usize>,
}

/// A place. It is free again once this is dropped.
pub(super) struct Place {
    places: Arc<EventStreams>,
    user: Option<Arc<str>>,
    number: u32,
}

impl Place {
    /// How far into a round of `every` this place has its turn. Places that are taken one after the other lie far apart,
    /// however many there are: each is 0.618 of a round (the golden ratio) behind the one before it.
    pub(super) fn turn(&self, every: Duration) -> Duration {
        const GOLDEN: u32 = 0x9e37_79b9;
        every.mul_f64(f64::from(self.number.wrapping_mul(GOLDEN)) / f64::from(u32::MAX))
    }
}

impl EventStreams {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            taken: Mutex::default(),
        }
    }

    /// A place for a user, or for somebody where nobody is asked who they are.
    ///
    /// # Errors
    /// [`ErrorCode::Overloaded`] if there is none.
    pub(super) fn take(self: &Arc<Self>, user: Option<Arc<str>>) -> Result<Place, WireError> {
        let mut taken = self.taken.lock();
        if taken.all >= self.most {
            return Err(full(&format!(
                "{} clients are told news already, which is api.max_event_streams",
                self.most
            )));
        }
        if let Some(user) = &user {
            let most = (self.most / SHARE).max(1);
            let of_user = taken.of_users.entry(user.clone()).or_default();
            if *of_user >= most {
                return Err(full(&format!(
                    "{most} clients of user {user} are told news already, a quarter of api.max_event_streams"
                )));
            }
            *of_user += 1;
        }
        taken.all += 1;
        taken.so_far = taken.so_far.wrapping_add(1);
        Ok(Place {
            places: self.clone(),
            user,
            number: taken.so_far,
        })
    }
}

fn full(what: &str) -> WireError {
    let text = format!("{what}; close one of them, or ask without /live");
    WireError::new(ErrorCode::Overloaded, text)
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        let Some(user) = self.user.take() else {
            return;
        };
        if let Some(of_user) = taken.of_users.get_mut(&user) {
            *of_user -= 1;
            if *of_user == 0 {
                taken.of_users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_part_of_the_places_and_gives_them_back() {
        let places = Arc::new(EventStreams::new(8));
        let take = |user: Option<&str>| places.take(user.map(Arc::from));
        let of_ann = [take(Some("ann")).unwrap(), take(Some("ann")).unwrap()];
        let refused = take(Some("ann")).err().expect("there is no third");
        assert!(refused.message.contains("user ann"), "{refused}");
        let of_bob = take(Some("bob")).unwrap();
        drop(of_ann);
        assert!(places.taken.lock().of_users.contains_key("bob"));
        assert!(!places.taken.lock().of_users.contains_key("ann"));
        drop((of_bob, take(Some("ann")).unwrap()));
        // Where nobody is asked, all are one's own.
        let all: Vec<_> = (0..8).map(|_| take(None).unwrap()).collect();
        let refused = take(Some("ann")).err().expect("there is none left");
        assert!(refused.message.contains("max_event_streams"), "{refused}");
        drop(all);
        assert_eq!(places.taken.lock().all, 0);
    }

    #[test]
    fn turns_of_places_taken_at_once_lie_far_apart() {
        let places = Arc::new(EventStreams::new(20));
        let all: Vec<_> = (0..20).map(|_| places.take(None).unwrap()).collect();
        let round = Duration::from_secs(1);
        let mut turns: Vec<_> = all.iter().map(|place| place.turn(round)).collect();
        turns.sort();
        assert!(*turns.last().expect("a turn") <= round);
        let next_round = turns[0] + round;
        for (turn, next) in turns.iter().zip(turns[1..].iter().chain([&next_round])) {
            assert!(*next - *turn >= round / 40, "{turns:?}");
        }
    }
}
