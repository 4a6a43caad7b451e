//! Seals on their way to one backup. When an owner is gone, hundreds of streamlets are sealed at once:
//! those that wait while others are under way go together, as one request with a list, which the backup
//! stores once.

use std::collections::VecDeque;
use std::sync::Arc;

use kera_protocol::v1;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tonic::transport::Channel;

use super::client;
use crate::ids::BrokerId;
use crate::transport::{CallError, Reply};

/// Requests under way at once.
const CALLS: usize = 4;
/// Streamlets of one request, and copies that are read for it; one streamlet may name more.
const STREAMLETS: usize = 64;
const COPIES: usize = 64;

type Outcome = Result<Reply, CallError>;

/// What waits to be sealed at one backup.
#[derive(Debug, Default)]
pub(super) struct Seals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    under_way: usize,
}

#[derive(Debug)]
struct Waiting {
    seal: v1::StreamletSeal,
    told: oneshot::Sender<Outcome>,
}

impl State {
    /// The next to go together; none ends who asks.
    fn next(&mut self) -> Vec<Waiting> {
        let (mut some, mut copies) = (Vec::new(), 0);
        while let Some(first) = self.waiting.front() {
            copies += first.seal.copies.len();
            if !some.is_empty() && (some.len() >= STREAMLETS || copies > COPIES) {
                break;
            }
            // Whoever gave up needs no answer, and asks again if it still matters.
            some.extend(self.waiting.pop_front().filter(|w| !w.told.is_closed()));
        }
        if some.is_empty() {
            self.under_way -= 1;
        }
        some
    }
}

impl Seals {
    /// Seals at `backup`, with others that want the same.
    pub(super) async fn ask(
        self: Arc<Self>,
        backup: BrokerId,
        channel: Channel,
        seal: v1::StreamletSeal,
    ) -> Outcome {
        let (told, outcome) = oneshot::channel();
        let begins = {
            let mut state = self.0.lock();
            state.waiting.push_back(Waiting { seal, told });
            let begins = state.under_way < CALLS;
            state.under_way += usize::from(begins);
            begins
        };
        if begins {
            // Goes on for the others when this caller gives up.
            tokio::spawn(self.work(backup, channel));
        }
        outcome.await.unwrap_or_else(|_| {
            Err(CallError::Lost {
                backup,
                reason: "this broker is stopping".into(),
            })
        })
    }

    async fn work(self: Arc<Self>, backup: BrokerId, channel: Channel) {
        loop {
            let some = self.0.lock().next();
            if some.is_empty() {
                return;
            }
            together(backup, &channel, some).await;
        }
    }
}

/// Sends one request for all of them. Where the backup refuses one it seals none: then each goes alone,
/// to hear what is its own.
async fn together(backup: BrokerId, channel: &Channel, some: Vec<Waiting>) {
    let seals: Vec<_> = some.iter().map(|one| one.seal.clone()).collect();
    match client::seal(backup, channel.clone(), seals).await {
        Ok(replies) => {
            for (one, reply) in some.into_iter().zip(replies) {
                // Who gave up meanwhile does not matter.
                let _ = one.told.send(Ok(Reply::Sealed(reply)));
            }
        }
        Err(CallError::Refused { .. }) if some.len() > 1 => {
            for one in some {
                let alone = client::seal(backup, channel.clone(), vec![one.seal]).await;
                let reply =
                    alone.map(|mut replies| Reply::Sealed(replies.pop().unwrap_or_default()));
                let _ = one.told.send(reply);
            }
        }
        Err(error) => {
            for one in some {
                let _ = one.told.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(copies: usize) -> (Waiting, oneshot::Receiver<Outcome>) {
        let (told, outcome) = oneshot::channel();
        let seal = v1::StreamletSeal {
            copies: vec![v1::RecordedCopy::default(); copies],
            ..v1::StreamletSeal::default()
        };
        (Waiting { seal, told }, outcome)
    }

    #[test]
    fn those_that_wait_go_together_within_bounds() {
        let mut state = State {
            under_way: 1,
            ..State::default()
        };
        let mut outcomes = Vec::new();
        for copies in [1, COPIES + 9, COPIES - 4, 2, 1] {
            let (one, outcome) = waiting(copies);
            state.waiting.push_back(one);
            outcomes.push(outcome);
        }
        // The fourth was given up.
        drop(outcomes.remove(3));
        let sizes: Vec<_> = std::iter::from_fn(|| {
            let some = state.next();
            (!some.is_empty()).then_some(some.len())
        })
        .collect();
        // One of many copies goes by itself; what was given up takes no place.
        assert_eq!(sizes, [1, 1, 2]);
        assert_eq!((state.under_way, state.waiting.len()), (0, 0));
        for _ in 0..=STREAMLETS {
            let (one, outcome) = waiting(0);
            state.waiting.push_back(one);
            outcomes.push(outcome);
        }
        state.under_way = 1;
        assert_eq!(state.next().len(), STREAMLETS);
        assert_eq!(state.next().len(), 1);
    }
}
