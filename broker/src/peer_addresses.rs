//! The network addresses at which the other brokers of the cluster are known.
//!
//! Who comes from one of them may have the connections that are reserved for brokers. It is asked for every
//! connection beyond the limits, so it never waits: names are looked up beside, and who comes before the
//! answer comes again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_replication::ids::BrokerId;
use kera_replication::transport::tcp::Peers;
use parking_lot::Mutex;

/// For how long what a name led to is believed.
const BELIEVED: Duration = Duration::from_secs(5);

/// HOST:PORT of each of the other brokers.
type Listed = BTreeMap<u32, Vec<String>>;

#[derive(Debug, Default)]
struct State {
    listed: Listed,
    found: HashMap<u32, HashSet<IpAddr>>,
    /// When names were looked up last; `None` before, and when others are listed.
    since: Option<Instant>,
}

/// Where the other brokers are, as far as is known.
#[derive(Clone, Debug, Default)]
pub struct PeerAddresses(Arc<Mutex<State>>);

impl PeerAddresses {
    /// The other brokers are these now. Within a tokio runtime names are looked up at once.
    pub fn list(&self, listed: Listed) {
        let mut state = self.0.lock();
        if state.listed == listed {
            return;
        }
        let mut found = HashMap::new();
        for (id, addresses) in &listed {
            let literal = addresses.iter().filter_map(|address| literal(address));
            let mut known: HashSet<_> = literal.collect();
            // Names stand for what they stood for until they are looked up again.
            if state.listed.get(id) == Some(addresses) {
                known.extend(state.found.get(id).into_iter().flatten());
            }
            found.insert(*id, known);
        }
        state.listed = listed;
        state.found = found;
        state.since = None;
        self.look_up(&mut state);
    }

    /// True if one of them is known at `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.is_at(address, None)
    }

    fn look_up(&self, state: &mut State) {
        if state.since.is_some_and(|since| since.elapsed() < BELIEVED) {
            return;
        }
        let named = |addresses: &Vec<String>| {
            let named = addresses.iter().filter(|a| literal(a).is_none());
            named.cloned().collect::<Vec<_>>()
        };
        let named = state.listed.iter().map(|(id, all)| (*id, named(all)));
        let named: Vec<_> = named.filter(|(_, names)| !names.is_empty()).collect();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if named.is_empty() {
            return;
        }
        state.since = Some(Instant::now());
        let (this, of) = (self.clone(), state.listed.clone());
        runtime.spawn(async move {
            for (id, names) in named {
                this.look_up_one(id, &names, &of).await;
            }
        });
    }

    async fn look_up_one(&self, id: u32, names: &[String], of: &Listed) {
        let (mut known, mut is_whole) = (HashSet::new(), true);
        for name in names {
            match tokio::net::lookup_host(name).await {
                Ok(found) => known.extend(found.map(|address| address.ip().to_canonical())),
                Err(error) => {
                    is_whole = false;
                    tracing::debug!(broker = id, address = name, %error, "a broker's address is not found");
                }
            }
        }
        let mut state = self.0.lock();
        let Some(addresses) = of.get(&id).filter(|a| state.listed.get(&id) == Some(a)) else {
            return;
        };
        known.extend(addresses.iter().filter_map(|address| literal(address)));
        if !is_whole {
            // It stays where it was: whoever answers for names may be away for a while.
            known.extend(state.found.get(&id).into_iter().flatten());
        }
        state.found.insert(id, known);
    }
}

impl Peers for PeerAddresses {
    fn is_at(&self, address: IpAddr, number: Option<BrokerId>) -> bool {
        let address = address.to_canonical();
        let mut state = self.0.lock();
        self.look_up(&mut state);
        match number {
            Some(number) => {
                let known = state.found.get(&number.0);
                known.is_some_and(|known| known.contains(&address))
            }
            None => state.found.values().any(|known| known.contains(&address)),
        }
    }
}

/// The host of HOST:PORT, if it is no name.
fn literal(address: &str) -> Option<IpAddr> {
    let address: SocketAddr = address.parse().ok()?;
    Some(address.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(all: &[(u32, &str)]) -> Listed {
        let one = |(id, address): &(u32, &str)| (*id, vec![(*address).to_owned()]);
        all.iter().map(one).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_are_known_at_once_and_forgotten_with_their_brokers() {
        let known = PeerAddresses::default();
        assert!(!known.contains(ip("10.0.0.2")));
        known.list(listed(&[(2, "10.0.0.2:7601"), (3, "[fd00::3]:7601")]));
        assert!(known.contains(ip("10.0.0.2")));
        assert!(known.contains(ip("::ffff:10.0.0.2")), "the same, mapped");
        assert!(known.is_at(ip("fd00::3"), Some(BrokerId(3))));
        assert!(!known.is_at(ip("fd00::3"), Some(BrokerId(2))));
        known.list(listed(&[(3, "10.0.0.4:7601")]));
        assert!(!known.contains(ip("10.0.0.2")) && !known.contains(ip("fd00::3")));
        assert!(known.contains(ip("10.0.0.4")));
    }

    #[tokio::test]
    async fn a_name_is_known_as_soon_as_it_is_looked_up() {
        let known = PeerAddresses::default();
        known.list(listed(&[(2, "localhost:7601")]));
        // Looked up beside; asking does not wait for it.
        while !known.is_at(ip("127.0.0.1"), Some(BrokerId(2))) {
            tokio::task::yield_now().await;
        }
        assert!(!known.contains(ip("10.0.0.2")));
        // Others come and go: what the name led to still counts, without a pause.
        known.list(listed(&[(2, "localhost:7601"), (3, "10.0.0.2:7601")]));
        assert!(known.contains(ip("127.0.0.1")));
    }
}
