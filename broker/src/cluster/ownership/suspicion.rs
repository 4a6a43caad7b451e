//! Brokers that are most likely gone though their lease goes on: their machine answers, and says that
//! nobody listens any more, as after a crash of the process.
//!
//! The controller keeps a connection to each living broker that carries nothing, and each broker one to
//! the controller; with TLS each keeps one to every other, which tells whose certificate it refuses
//! ([`super::refusal`]). When it ends and a new one is refused a few times in a row, the broker is suspected, and
//! its streamlets get new owners without waiting for the lease; a controller's office is taken by whoever
//! is first. That is safe whoever is right: the new owners seal what the old one could still write, and
//! what a former controller decides is refused. A broker that does not answer at all is not suspected; its
//! lease decides.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{Living, Role};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::refusal::{Handshakes, InARow, Place, RefusedTold};

/// Refusals in a row that make a suspicion.
const REFUSALS: usize = 3;
/// Pause between attempts to connect.
pub(super) const PAUSE: Duration = Duration::from_millis(60);
/// An attempt to connect that takes longer says nothing.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Who is suspected, by number.
pub(crate) type Suspects = BTreeSet<u32>;

/// Watches the living brokers but `me` while this one is `elected`, and else the `controller`; with `handshakes` all,
/// this one among them. Until `stopping` is set.
pub(crate) async fn watch_over(
    me: u32,
    mut living: watch::Receiver<Living>,
    mut controller: watch::Receiver<Option<u32>>,
    mut elected: watch::Receiver<Option<u64>>,
    mut stopping: watch::Receiver<bool>,
    handshakes: Option<Handshakes>,
    suspects: Arc<watch::Sender<Suspects>>,
) {
    let mut watched: BTreeMap<u32, Watched> = BTreeMap::new();
    let mut told = RefusedTold::new(me);
    let no_files = watch::Sender::new(0);
    let mut files = match &handshakes {
        Some(handshakes) => handshakes.files(),
        None => no_files.subscribe(),
    };
    loop {
        let in_office = *controller.borrow_and_update();
        // Both are told of one election, one after the other; what is suspected stays so in between.
        let rules = elected.borrow_and_update().is_some() || in_office == Some(me);
        let mine = *files.borrow_and_update();
        let mut wanted: BTreeMap<u32, Place> = BTreeMap::new();
        {
            let living = living.borrow_and_update();
            told.tell(&living);
            // What a replica store holds is its owners' business; nobody takes anything over from it.
            let brokers = living.values().filter(|live| live.role == Role::Broker);
            let watched = brokers.filter(|live| match &handshakes {
                Some(_) => true,
                None => live.id != me && (rules || in_office == Some(live.id)),
            });
            wanted.extend(watched.map(|live| (live.id, Place::of(live, mine))));
        }
        watched.retain(|id, one| wanted.get(id) == Some(&one.place));
        if let Some(handshakes) = &handshakes {
            handshakes.retain(|id| wanted.contains_key(&id));
        }
        suspects.send_if_modified(|all| {
            let before = all.len();
            all.retain(|id| watched.contains_key(id));
            all.len() != before
        });
        for (id, place) in wanted {
            let watching = Watching {
                id,
                place: place.clone(),
                handshakes: handshakes.clone(),
                // It does not suspect itself.
                suspects: (id != me).then(|| suspects.clone()),
            };
            watched.entry(id).or_insert_with(|| Watched {
                place,
                task: tokio::spawn(watching.watch()).abort_handle(),
            });
        }
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            changed = living.changed() => if changed.is_err() { return },
            changed = elected.changed() => if changed.is_err() { return },
            changed = controller.changed() => if changed.is_err() { return },
            changed = files.changed() => if changed.is_err() { return },
        }
    }
}

/// A broker to which a connection is kept.
struct Watched {
    place: Place,
    task: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What it takes to keep a connection to a broker.
struct Watching {
    id: u32,
    place: Place,
    handshakes: Option<Handshakes>,
    suspects: Option<Arc<watch::Sender<Suspects>>>,
}

impl Watching {
    async fn watch(self) {
        let (id, address) = (self.id, &self.place.address);
        let (mut unheard, mut refused) = (0, InARow::default());
        loop {
            let mut pause = PAUSE;
            match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(connection)) => {
                    unheard = 0;
                    if self.suspect(|all| all.remove(&id)) {
                        tracing::info!(broker = id, "the broker is reached again");
                    }
                    // Nothing is said on it; it ends with the process, or when the broker tires of it.
                    pause = match &self.handshakes {
                        Some(handshakes) => {
                            let place = &self.place;
                            handshakes.rest(id, connection, place, &mut refused).await
                        }
                        None => rest(connection).await,
                    };
                }
                Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                    unheard += 1;
                    if let Some(handshakes) = &self.handshakes {
                        handshakes.restarts(id);
                    }
                    if unheard >= REFUSALS && self.suspect(|all| all.insert(id)) {
                        tracing::warn!(
                            broker = id,
                            address,
                            "nobody listens there any more: the broker is taken for gone before its lease ends"
                        );
                    }
                }
                Ok(Err(_)) | Err(_) => unheard = 0,
            }
            sleep(pause).await;
        }
    }

    fn suspect(&self, change: impl FnOnce(&mut Suspects) -> bool) -> bool {
        let suspects = self.suspects.as_ref();
        suspects.is_some_and(|suspects| suspects.send_if_modified(change))
    }
}

/// Returns when the connection has ended.
async fn rest(mut connection: TcpStream) -> Duration {
    let _ended = connection.read(&mut [0]).await;
    PAUSE
}

#[cfg(test)]
mod tests {
    use kera_metadata::{Incarnation, LiveBroker};
    use tokio::net::{TcpListener, TcpSocket};
    use uuid::Uuid;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    async fn until(suspects: &mut watch::Receiver<Suspects>, wanted: &[u32]) {
        let wanted: Suspects = wanted.iter().copied().collect();
        let seen = suspects.wait_for(|now| *now == wanted);
        let seen = tokio::time::timeout(PATIENCE, seen).await;
        assert!(seen.is_ok(), "not seen: {wanted:?}");
    }

    #[tokio::test]
    async fn a_broker_at_which_nobody_listens_is_suspected_until_somebody_does() {
        // Keeps the port while nobody listens there.
        let bound = TcpSocket::new_v4().unwrap();
        bound.set_reuseaddr(true).unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = bound.local_addr().unwrap();
        let listener = TcpListener::bind(address).await.unwrap();
        let incarnation = Incarnation {
            store_id: Uuid::nil(),
            boot_id: Uuid::nil(),
        };
        let live = |id: u32| LiveBroker {
            address: address.to_string(),
            ..LiveBroker::new(id, incarnation)
        };
        let living: Living = Arc::new(BTreeMap::from([(1, live(1)), (2, live(2))]));
        let living = watch::Sender::new(living);
        let elected = watch::Sender::new(Some(1));
        let controller = watch::Sender::new(Some(1));
        let stopping = watch::Sender::new(false);
        let suspects = Arc::new(watch::Sender::new(Suspects::new()));
        let mut seen = suspects.subscribe();
        tokio::spawn(watch_over(
            1,
            living.subscribe(),
            controller.subscribe(),
            elected.subscribe(),
            stopping.subscribe(),
            None,
            suspects.clone(),
        ));
        let (connection, _) = listener.accept().await.unwrap();
        drop((listener, connection));
        until(&mut seen, &[2]).await;
        let listener = TcpListener::bind(address).await.unwrap();
        until(&mut seen, &[]).await;
        drop(listener);
        until(&mut seen, &[2]).await;
        // The office goes to it: it is suspected still, and by whoever is to succeed it.
        controller.send_replace(Some(2));
        elected.send_replace(None);
        let listener = TcpListener::bind(address).await.unwrap();
        until(&mut seen, &[]).await;
        drop(listener);
        until(&mut seen, &[2]).await;
        // Who is not controller suspects nobody else.
        controller.send_replace(None);
        until(&mut seen, &[]).await;
    }
}
