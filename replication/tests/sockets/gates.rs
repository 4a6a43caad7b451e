//! What gets through between brokers: forwarders that can hold bytes back, and links that can.
#![allow(dead_code)] // each test file uses its part

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use kera_replication::ids::BrokerId;
use kera_replication::transport::{Link, LinkError, Write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

/// How often a closed gate is looked at, and how long a link stands before one.
const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_millis(400);

/// What gets through from whom to whom.
#[derive(Debug, Default)]
pub struct Gates {
    cut: Mutex<HashSet<(BrokerId, BrokerId)>>,
    paused: Mutex<HashSet<BrokerId>>,
    changed: watch::Sender<()>,
    /// Where each broker listens now.
    addresses: Mutex<HashMap<BrokerId, String>>,
}

impl Gates {
    pub fn address(&self, of: BrokerId) -> Option<String> {
        self.addresses.lock().expect("no panic").get(&of).cloned()
    }

    pub fn listens(&self, node: BrokerId, address: Option<String>) {
        let mut addresses = self.addresses.lock().expect("no panic");
        match address {
            Some(address) => addresses.insert(node, address),
            None => addresses.remove(&node),
        };
    }

    pub fn pause(&self, node: BrokerId, paused: bool) {
        {
            let mut all = self.paused.lock().expect("no panic");
            if paused {
                all.insert(node);
            } else {
                all.remove(&node);
            }
        }
        self.changed.send_replace(());
    }

    pub fn cut(&self, from: BrokerId, to: BrokerId) {
        self.cut.lock().expect("no panic").insert((from, to));
        self.changed.send_replace(());
    }

    pub fn heal(&self) {
        self.cut.lock().expect("no panic").clear();
        self.paused.lock().expect("no panic").clear();
        self.changed.send_replace(());
    }

    fn is_open(&self, from: BrokerId, to: BrokerId) -> bool {
        let paused = self.paused.lock().expect("no panic");
        let cut = self.cut.lock().expect("no panic");
        !paused.contains(&from) && !paused.contains(&to) && !cut.contains(&(from, to))
    }

    /// Whether what `sender` has its card carry from `from` to `to` gets through. The process at the
    /// other end may be stopped: it takes no part.
    fn carries(&self, sender: BrokerId, from: BrokerId, to: BrokerId) -> bool {
        let paused = self.paused.lock().expect("no panic");
        let cut = self.cut.lock().expect("no panic");
        !paused.contains(&sender) && !cut.contains(&(from, to))
    }

    pub async fn passes(&self, from: BrokerId, to: BrokerId) {
        let mut changed = self.changed.subscribe();
        while !self.is_open(from, to) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Carries what `from` asks of `to`, and what it answers.
    pub async fn forward(self: Arc<Self>, listener: TcpListener, from: BrokerId, to: BrokerId) {
        while let Ok((near, _)) = listener.accept().await {
            let gates = self.clone();
            tokio::spawn(async move {
                gates.passes(from, to).await;
                let Some(address) = gates.address(to) else {
                    return;
                };
                let Ok(far) = TcpStream::connect(address).await else {
                    return;
                };
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                tokio::select! {
                    () = gates.carry(near_read, far_write, from, to) => {}
                    () = gates.carry(far_read, near_write, to, from) => {}
                }
            });
        }
    }

    async fn carry(
        &self,
        mut read: tokio::net::tcp::OwnedReadHalf,
        mut write: tokio::net::tcp::OwnedWriteHalf,
        from: BrokerId,
        to: BrokerId,
    ) {
        let mut buf = vec![0; 16 << 10];
        while let Ok(len @ 1..) = read.read(&mut buf).await {
            self.passes(from, to).await;
            if write.write_all(&buf[..len]).await.is_err() {
                return;
            }
        }
    }
}

/// A link that no forwarder can stand in the way of: what is handed to it while a gate is closed
/// goes on when the gate opens again, or breaks the link, and completions wait likewise.
pub struct GatedLink {
    inner: Box<dyn Link>,
    gates: Arc<Gates>,
    from: BrokerId,
    to: BrokerId,
    held: VecDeque<Vec<Write>>,
    /// Numbers given, and the highest returned.
    submitted: u64,
    returned: u64,
    /// Since when it has stood before a closed gate.
    stands: Option<Instant>,
    look: Pin<Box<Sleep>>,
}

impl GatedLink {
    pub fn new(inner: Box<dyn Link>, gates: Arc<Gates>, from: BrokerId, to: BrokerId) -> Self {
        Self {
            inner,
            gates,
            from,
            to,
            held: VecDeque::new(),
            submitted: 0,
            returned: 0,
            stands: None,
            look: Box::pin(tokio::time::sleep(LOOK)),
        }
    }

    /// Hands on what was held; false if the gate is closed.
    fn hand_on(&mut self) -> bool {
        if !self.gates.carries(self.from, self.from, self.to) {
            return false;
        }
        while let Some(writes) = self.held.pop_front() {
            match self.inner.submit(writes.clone()) {
                Ok(_) => {}
                Err(LinkError::Full(_)) => {
                    self.held.push_front(writes);
                    break;
                }
                // The next poll tells.
                Err(_) => break,
            }
        }
        true
    }
}

impl Link for GatedLink {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        self.held.push_back(writes);
        self.hand_on();
        self.submitted += 1;
        Ok(self.submitted)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        let out = self.hand_on();
        let back = self.gates.carries(self.from, self.to, self.from);
        if out && back {
            self.stands = None;
            let polled = self.inner.poll_completed(cx);
            if let Poll::Ready(Ok(number)) = polled {
                self.returned = number;
            }
            return polled;
        }
        let now = Instant::now();
        if self.submitted > self.returned {
            let since = *self.stands.get_or_insert(now);
            if now >= since + PATIENCE {
                let (backup, reason) = (self.to, "the gate stays closed".to_string());
                return Poll::Ready(Err(LinkError::Broken { backup, reason }));
            }
        }
        while self.look.as_mut().poll(cx).is_ready() {
            self.look.as_mut().reset(Instant::now() + LOOK);
        }
        Poll::Pending
    }
}
