//! A backup that lost its lease may go on as ever, or have stopped: told apart by whether it still answers.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::caller::{BRIEFLY, Caller};
use super::peers::Left;
use crate::ids::BrokerId;
use crate::transport::Pending;

/// What a shipper knows of its backup's absence from the brokers that are alive.
#[derive(Default)]
pub(super) enum LostLease {
    /// It is alive, as far as is known.
    #[default]
    None,
    /// News that it is not are awaited.
    Awaited(Left),
    /// It is not; it has until then to answer.
    Silent(Pending<()>),
}

impl LostLease {
    /// It has answered, or nothing is to be answered.
    pub(super) fn heard(&mut self) {
        if let Self::Silent(_) = self {
            *self = Self::None;
        }
    }

    /// True if `backup` has been absent and silent for a while, all of which something was under way to it.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        caller: &Caller,
        backup: BrokerId,
        waiting: bool,
    ) -> bool {
        if !waiting {
            self.heard();
            return false;
        }
        loop {
            match self {
                Self::None => *self = Self::Awaited(caller.neighbours.left(backup)),
                Self::Awaited(left) => match Pin::new(left).poll(cx) {
                    Poll::Ready(()) => *self = Self::Silent(caller.runtime.sleep(BRIEFLY)),
                    Poll::Pending => return false,
                },
                Self::Silent(silent) => {
                    if caller.neighbours.has(backup) {
                        *self = Self::None;
                        continue;
                    }
                    let over = silent.as_mut().poll(cx).is_ready();
                    if over {
                        *self = Self::None;
                    }
                    return over;
                }
            }
        }
    }
}
