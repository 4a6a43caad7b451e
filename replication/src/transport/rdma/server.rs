//! The backup's end: takes connections, registers buffers, and keeps sealed copies from being written.
//!
//! It sees connections come and go, and no data.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::key::{PAGE_BYTES, RemoteBuffer};
use super::link::poll_event;
use super::verbs::{
    Access, CmEvent, CmEventKind, CmId, Device, EventChannel, IdName, Mr, Pd, Qp, Terms,
};
use super::words::{Cause, PROTOCOL, Words};
use super::{explained, unregistered};
use crate::backup::{Registrar, Registration, ReplicaStore, Window};
use crate::ids::{BrokerId, BufferKey, ProcessId};
use crate::transport::hello::Hello;

/// Connections that may wait to be looked at.
const BACKLOG: i32 = 64;
/// Primaries that are remembered; each has a protection domain here.
const MAX_PRIMARIES: usize = 1024;

/// Serves one store over RDMA, beside its TCP listener.
#[derive(Debug)]
pub struct RdmaServer {
    listening: Arc<Listening>,
    stopping: watch::Sender<bool>,
}

/// What the store and the listener share.
#[derive(Debug)]
struct Listening {
    device: Device,
    process: ProcessId,
    channel: Arc<EventChannel>,
    /// Kept while connections are taken.
    state: Mutex<State>,
    domains: Mutex<HashMap<BrokerId, Arc<Pd>>>,
}

#[derive(Debug)]
struct State {
    listener: Option<CmId>,
    /// The connection of each primary.
    seats: HashMap<BrokerId, CmId>,
}

impl RdmaServer {
    /// Listens on `address`, which belongs to an RDMA card, and registers what is opened in `store` from now on. Its
    /// port is another than TCP's of the same number. Connections are taken by [`serve`](Self::serve).
    ///
    /// # Errors
    /// A text that says what is missing: the library, a card, a device file; or that the address is in use.
    pub fn bind(address: SocketAddr, store: &ReplicaStore) -> io::Result<Arc<Self>> {
        let told = |step: &str, error: io::Error| {
            io::Error::new(error.kind(), format!("{step}: {}", explained(&error)))
        };
        let channel = EventChannel::new().map_err(|e| told("RDMA cannot be used here", e))?;
        let mut listener = CmId::new(&channel).map_err(|e| told("RDMA cannot be used here", e))?;
        let step = format!("{address} cannot be listened on for RDMA");
        listener.bind(address).map_err(|e| told(&step, e))?;
        listener.listen(BACKLOG).map_err(|e| told(&step, e))?;
        let Some(device) = listener.device() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{step}: it belongs to no single network card; name an address of one"),
            ));
        };
        let listening = Arc::new(Listening {
            device,
            process: store.process(),
            channel,
            state: Mutex::new(State {
                listener: Some(listener),
                seats: HashMap::new(),
            }),
            domains: Mutex::default(),
        });
        store.register_with(listening.clone());
        Ok(Arc::new(Self {
            listening,
            stopping: watch::Sender::new(false),
        }))
    }

    /// The card's name.
    pub fn device(&self) -> String {
        self.listening.device.name()
    }

    /// Primaries that have a connection now.
    pub fn primaries(&self) -> usize {
        self.listening.state.lock().seats.len()
    }

    /// Takes connections until [`stop`](Self::stop). When it ends, or is dropped, no connection is left.
    ///
    /// # Errors
    /// If the connection manager's events cannot be read.
    pub async fn serve(self: &Arc<Self>) -> io::Result<()> {
        let _ending = Ending(&self.listening);
        let events = self.listening.channel.watched()?;
        let mut stopping = self.stopping.subscribe();
        loop {
            let event = tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return Ok(()),
                event = std::future::poll_fn(|cx| self.listening.poll(&events, cx)) => event,
            };
            event?;
        }
    }

    /// Ends [`serve`](Self::serve): connections are destroyed, and nothing lands after it returned.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }
}

/// Destroys all connections, whichever way serving ends.
struct Ending<'a>(&'a Listening);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.listener = None;
        state.seats.clear();
    }
}

impl Listening {
    /// Handles events while there are any. Reading them and destroying what they are about exclude
    /// each other, so that no event is ever about what is gone.
    fn poll(
        &self,
        events: &AsyncFd<Arc<EventChannel>>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        loop {
            let mut state = self.state.lock();
            let event = std::task::ready!(poll_event(events, cx))?;
            self.handle(&mut state, event);
        }
    }

    fn handle(&self, state: &mut State, event: CmEvent) {
        match event.kind {
            CmEventKind::ConnectRequest => {
                let Some(mut id) = event.incoming else { return };
                match self.accept(state, &event.data, &mut id) {
                    Ok(primary) => {
                        state.seats.insert(primary, id);
                    }
                    Err(words) => {
                        tracing::info!(cause = ?words.cause, "an RDMA connection was refused: {}", words.text);
                        if let Err(error) = id.reject(&words.encode()) {
                            tracing::debug!(%error, "it was gone already");
                        }
                    }
                }
            }
            CmEventKind::Disconnected | CmEventKind::Failed => {
                state.leave(event.id);
            }
            _ => {}
        }
    }

    fn accept(&self, state: &mut State, hello: &[u8], id: &mut CmId) -> Result<BrokerId, Words> {
        let hello =
            Hello::decode(hello, &PROTOCOL).map_err(|text| Words::new(Cause::Malformed, text))?;
        if hello.process != self.process {
            let text = "this replica store was restarted and has sealed its open replicas";
            return Err(Words::new(Cause::OtherProcess, text));
        }
        let unable = |error: io::Error| Words::new(Cause::Unable, error.to_string());
        if id.device() != Some(self.device) {
            let text = "this replica store's buffers are registered with another network card";
            return Err(Words::new(Cause::Unable, text));
        }
        // Nothing that was sent over the earlier connection lands once this is done.
        state.seats.remove(&hello.primary);
        let domain = self.domain(hello.primary).map_err(unable)?;
        let parts = Qp::target(self.device, domain).map_err(unable)?;
        id.create_qp(parts).map_err(unable)?;
        let terms = Terms {
            retries: super::MOST_RETRIES,
            words: &[],
        };
        id.accept(terms).map_err(unable)?;
        Ok(hello.primary)
    }

    /// What belongs to one primary.
    fn domain(&self, primary: BrokerId) -> io::Result<Arc<Pd>> {
        let mut domains = self.domains.lock();
        if let Some(domain) = domains.get(&primary) {
            return Ok(domain.clone());
        }
        if domains.len() >= MAX_PRIMARIES {
            // Of those that have neither a buffer nor a connection.
            domains.retain(|_, domain| Arc::strong_count(domain) > 1);
        }
        if domains.len() >= MAX_PRIMARIES {
            return Err(io::Error::other(format!(
                "{MAX_PRIMARIES} primaries have buffers here, which is the most"
            )));
        }
        let domain = Pd::new(self.device)?;
        domains.insert(primary, domain.clone());
        Ok(domain)
    }
}

impl State {
    fn leave(&mut self, name: IdName) {
        self.seats.retain(|_, id| id.name() != name);
    }
}

impl Registrar for Listening {
    fn register(
        &self,
        primary: BrokerId,
        window: Window,
    ) -> io::Result<(BufferKey, Box<dyn Registration>)> {
        let bytes = window.len() as u64;
        let base = window.address().as_ptr().addr() as u64 % PAGE_BYTES;
        let domain = self.domain(primary)?;
        let region = Mr::new(&domain, window, base, Access::RemoteWrite);
        let region =
            region.map_err(|error| io::Error::new(error.kind(), unregistered(&error, bytes)))?;
        let key = region.remote_key();
        let name = RemoteBuffer { key, base }.name(rand::random());
        Ok((name, Box::new(Registered(Some(region)))))
    }

    fn disconnect(&self, primaries: &[BrokerId], then: &mut dyn FnMut()) {
        let mut state = self.state.lock();
        for primary in primaries {
            state.seats.remove(primary);
        }
        // Nobody connects before the lock is free.
        then();
    }
}

/// A registered buffer, until it is ended.
#[derive(Debug)]
struct Registered(Option<Mr<Window>>);

impl Registration for Registered {
    fn end(&mut self) -> io::Result<()> {
        let Some(region) = self.0.take() else {
            return Ok(());
        };
        region.end().map_err(|(error, region)| {
            self.0 = Some(region);
            error
        })
    }
}
