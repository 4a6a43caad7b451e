//! Which brokers a client may ask: those it was told of, and those it has heard of since.

use std::sync::Arc;

use parking_lot::Mutex;

/// Most brokers remembered beside those of the bootstrap list.
const MAX_HEARD_OF: usize = 64;

/// Brokers to ask, one of them in use. A broker that does not answer is left for the next; brokers
/// that answers named are asked too, so that a client goes on when every broker of its bootstrap list
/// is gone.
#[derive(Debug)]
pub(crate) struct Brokers {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The bootstrap list first, in its order, then the others.
    known: Vec<Arc<str>>,
    bootstrap: usize,
    current: Arc<str>,
    /// Those of the bootstrap list that have refused the client's login, since all of them did.
    refused_by: Vec<Arc<str>>,
}

impl Brokers {
    /// Those of a bootstrap list, which is not empty; the first is in use.
    pub(crate) fn new(bootstrap: Vec<String>) -> Self {
        let known: Vec<Arc<str>> = bootstrap.into_iter().map(Arc::from).collect();
        let current = known.first().cloned().unwrap_or_else(|| Arc::from(""));
        Self {
            inner: Mutex::new(Inner {
                bootstrap: known.len(),
                known,
                current,
                refused_by: Vec::new(),
            }),
        }
    }

    /// `address` refuses the client's login. True if the bootstrap list names others that have not: they may have heard of
    /// the user already.
    pub(crate) fn others_may_take(&self, address: &str) -> bool {
        let inner = &mut *self.inner.lock();
        let listed = &inner.known[..inner.bootstrap];
        let new = |known: &&Arc<str>| ***known == *address && !inner.refused_by.contains(known);
        inner.refused_by.extend(listed.iter().find(new).cloned());
        let is_left = inner.refused_by.len() < listed.len();
        if !is_left {
            inner.refused_by.clear();
        }
        is_left
    }

    /// Those of the bootstrap list.
    pub(crate) fn listed(&self) -> Vec<Arc<str>> {
        let inner = self.inner.lock();
        inner.known[..inner.bootstrap].to_vec()
    }

    /// How many there are to ask.
    pub(crate) fn count(&self) -> usize {
        self.inner.lock().known.len()
    }

    /// The broker in use.
    pub(crate) fn current(&self) -> Arc<str> {
        self.inner.lock().current.clone()
    }

    /// `failed` did not answer: the next is used, unless another caller has moved on already.
    pub(crate) fn move_on(&self, failed: &str) {
        let mut inner = self.inner.lock();
        if *inner.current != *failed {
            return;
        }
        let at = inner.known.iter().position(|known| **known == *failed);
        let next = at.map_or(0, |at| (at + 1) % inner.known.len());
        inner.current = inner.known[next].clone();
    }

    /// All but `asked`, from the one that comes after it on.
    pub(crate) fn after(&self, asked: &str) -> Vec<Arc<str>> {
        let inner = self.inner.lock();
        let at = inner.known.iter().position(|known| **known == *asked);
        let (before, after) = inner.known.split_at(at.unwrap_or_default());
        let others = after.iter().chain(before);
        others.filter(|known| ***known != *asked).cloned().collect()
    }

    /// From now on `address` is in use.
    pub(crate) fn turn_to(&self, address: &Arc<str>) {
        self.inner.lock().current = address.clone();
    }

    /// Takes note of brokers that an answer named, in place of those of earlier answers.
    pub(crate) fn heard_of<'a>(&self, addresses: impl Iterator<Item = &'a str>) {
        let mut inner = self.inner.lock();
        let bootstrap = inner.bootstrap;
        let mut count = 0;
        let mut changed = false;
        let mut last = "";
        for address in addresses {
            // Neighbouring streamlets often have one owner.
            if address.is_empty() || address == last {
                continue;
            }
            last = address;
            let at = inner.known.iter().position(|known| **known == *address);
            match at {
                Some(at) if at < bootstrap + count => {}
                Some(at) => {
                    inner.known.swap(at, bootstrap + count);
                    count += 1;
                }
                None if count == MAX_HEARD_OF => break,
                None => {
                    inner.known.insert(bootstrap + count, Arc::from(address));
                    count += 1;
                    changed = true;
                }
            }
        }
        // Of those that no answer names any more some are kept: they may be back soon.
        if changed && inner.known.len() > bootstrap + MAX_HEARD_OF {
            inner.known.truncate(bootstrap + MAX_HEARD_OF);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brokers(list: &[&str]) -> Brokers {
        Brokers::new(list.iter().map(|address| (*address).to_owned()).collect())
    }

    #[test]
    fn a_broker_that_fails_many_callers_at_once_is_left_once() {
        let brokers = brokers(&["a:1", "b:1"]);
        for _ in 0..3 {
            brokers.move_on("a:1");
        }
        assert_eq!(&*brokers.current(), "b:1");
        brokers.move_on("b:1");
        assert_eq!(&*brokers.current(), "a:1");
    }

    #[test]
    fn the_others_come_in_the_order_of_the_list_and_then_those_heard_of() {
        let brokers = brokers(&["a:1", "b:1", "c:1"]);
        brokers.heard_of(["d:1"].into_iter());
        let after = |asked| brokers.after(asked).join(" ");
        assert_eq!(after("a:1"), "b:1 c:1 d:1");
        assert_eq!(after("c:1"), "d:1 a:1 b:1");
        assert_eq!(after("e:1"), "a:1 b:1 c:1 d:1", "it is forgotten by now");
        brokers.turn_to(&Arc::from("c:1"));
        assert_eq!(&*brokers.current(), "c:1");
    }

    #[test]
    fn brokers_of_answers_are_asked_after_those_of_the_list() {
        let brokers = brokers(&["a:1"]);
        brokers.heard_of(["b:1", "b:1", "a:1", "", "c:1"].into_iter());
        let mut asked = Vec::new();
        for _ in 0..4 {
            let current = brokers.current();
            asked.push(current.to_string());
            brokers.move_on(&current);
        }
        assert_eq!(asked, ["a:1", "b:1", "c:1", "a:1"]);
    }

    #[test]
    fn no_more_brokers_are_kept_than_the_limit() {
        let brokers = brokers(&["a:1"]);
        for round in 0..3 {
            let many: Vec<_> = (0..500).map(|i| format!("h{round}:{}", i + 1)).collect();
            brokers.heard_of(many.iter().map(String::as_str));
        }
        let inner = brokers.inner.lock();
        assert_eq!(inner.known.len(), 1 + MAX_HEARD_OF);
        assert_eq!(&*inner.known[1], "h2:1");
    }
}
