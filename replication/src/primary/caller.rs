//! How a broker asks for something: of its own copies at once, of a backup with a bound on the time.
//!
//! The bound is short for one that is not among the brokers that are alive. One that leaves them while it
//! is asked has stopped, most likely, and lost its lease: it has a moment more.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::Config;
use super::peers::Neighbours;
use crate::ids::BrokerId;
use crate::own::OwnRef;
use crate::runtime::{RuntimeRef, within};
use crate::transport::{CallError, Pending, Reply, Request, TransportRef};

/// Longest wait for one that is not among the brokers that are alive.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(300);

/// Asks backups, and this broker's own copies in the same words.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(super) me: BrokerId,
    pub(super) own: Option<OwnRef>,
    pub(super) neighbours: Arc<Neighbours>,
    pub(super) transport: TransportRef,
    pub(super) runtime: RuntimeRef,
    pub(super) config: Config,
}

impl Caller {
    /// True for this broker's own copies, and for backups that are alive as far as this broker knows.
    pub(crate) fn is_alive(&self, backup: BrokerId) -> bool {
        (self.own.is_some() && backup == self.me) || self.neighbours.has(backup)
    }

    /// How long an answer may take: reading or flushing whole groups is no small call.
    fn patience(&self, request: &Request) -> Duration {
        match request {
            Request::Seal(seal) if !seal.copies.is_empty() => self.config.scan_timeout,
            Request::Flush { .. } | Request::FlushRound { .. } | Request::Check { .. } => {
                self.config.flush_timeout
            }
            _ => self.config.call_timeout,
        }
    }

    /// Asks once. One that is not alive to begin with has as long as any other; whoever leaves the living
    /// meanwhile has a moment more.
    pub(crate) fn once(
        &self,
        backup: BrokerId,
        request: Request,
    ) -> Pending<Result<Reply, CallError>> {
        if let Some(own) = self.own.as_ref().filter(|_| backup == self.me) {
            let answer = own.ask(request);
            return Box::pin(async move {
                let refused = |refusal| CallError::Refused { backup, refusal };
                answer.await.map_err(refused)
            });
        }
        let patience = self.patience(&request);
        let name = request.name();
        let (transport, runtime) = (self.transport.clone(), self.runtime.clone());
        let neighbours = self.neighbours.clone();
        Box::pin(async move {
            let asked = transport.call(backup, request);
            let lost = |reason| Err(CallError::Lost { backup, reason });
            if !neighbours.has(backup) {
                let reply = within(&*runtime, patience, asked).await;
                return reply
                    .unwrap_or_else(|| lost(format!("{name} took longer than {patience:?}")));
            }
            let mut left = neighbours.left(backup);
            let mut gone: Option<Pending<()>> = None;
            let clock = runtime.clone();
            let mut asked = asked;
            let until_gone = poll_fn(move |cx| {
                if let Poll::Ready(reply) = asked.as_mut().poll(cx) {
                    return Poll::Ready(Some(reply));
                }
                if gone.is_none() && pin!(&mut left).poll(cx).is_ready() {
                    gone = Some(clock.sleep(BRIEFLY));
                }
                match &mut gone {
                    Some(gone) => gone.as_mut().poll(cx).map(|()| None),
                    None => Poll::Pending,
                }
            });
            match within(&*runtime, patience, Box::pin(until_gone)).await {
                Some(Some(reply)) => reply,
                Some(None) => lost(format!(
                    "it left the brokers that are alive, and did not answer {name}"
                )),
                None => lost(format!("{name} took longer than {patience:?}")),
            }
        })
    }

    /// Asks once, of one that is most likely gone, and does not wait for long.
    fn briefly(&self, backup: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let name = request.name();
        let (asked, runtime) = (self.once(backup, request), self.runtime.clone());
        Box::pin(async move {
            let reply = within(&*runtime, BRIEFLY, asked).await;
            reply.unwrap_or_else(|| {
                Err(CallError::Lost {
                    backup,
                    reason: format!("{name} took longer than {BRIEFLY:?}, and it is not among the brokers that are alive"),
                })
            })
        })
    }

    /// Asks again when there is no answer, up to the configured attempts; of one that is not alive once,
    /// and briefly.
    pub(crate) fn ask(
        &self,
        backup: BrokerId,
        request: Request,
    ) -> Pending<Result<Reply, CallError>> {
        let caller = self.clone();
        Box::pin(async move {
            let mut attempt = 0;
            loop {
                if !caller.is_alive(backup) {
                    return caller.briefly(backup, request).await;
                }
                match caller.once(backup, request.clone()).await {
                    Err(CallError::Lost { .. })
                        if attempt < caller.config.attempts && caller.is_alive(backup) =>
                    {
                        attempt += 1;
                        caller.runtime.sleep(caller.config.pause).await;
                    }
                    other => return other,
                }
            }
        })
    }
}
