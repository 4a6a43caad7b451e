//! Brokers that do not let the user in any more: told to whoever reads.

use kera_protocol::error::ErrorCode;
use kera_rpc::RpcError;

use super::After;
use super::state::State;
use crate::error::ConsumeError;

/// What a broker was asked for when it did not let the user in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    ForOwners,
    ForData,
}

/// A login that no broker takes any more.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: ConsumeError,
    asked: Asked,
}

impl State {
    /// Has a reader told that it is not let in any more, if that is what `error` says and it is final. True if it is.
    /// Attempts go on: the user may be made anew, or be given the right.
    pub(super) fn not_let_in(
        &mut self,
        stream: &str,
        error: RpcError,
        asked: Asked,
        after: &mut After,
    ) -> bool {
        // Whoever may not see a stream is told by its owner that there is none.
        let is_denied = error.code() == Some(ErrorCode::NotAuthorized);
        if !error.is_shut_out() && !is_denied {
            return false;
        }
        if self.sources.values().any(|source| !source.has_ended()) {
            let error = ConsumeError::of_stream(error, stream);
            self.refused = Some(Refused { error, asked });
            after.ready = true;
        }
        true
    }

    /// A broker lets the user in again, or still, for what it was asked for.
    pub(super) fn let_in(&mut self, asked: Asked) {
        self.refused.take_if(|refused| refused.asked == asked);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kera_protocol::error::WireError;
    use kera_rpc::{ConnectionError, LoginError};

    use super::super::Popped;
    use super::super::state::tests::state;
    use super::*;

    fn refusal(is_retryable: bool) -> RpcError {
        let error = LoginError::new("ann", "unknown", is_retryable);
        let address = "a:1".into();
        ConnectionError::Login { address, error }.into()
    }

    fn refuse(state: &mut State, is_retryable: bool, asked: Asked) -> bool {
        let mut after = After::default();
        let told = state.not_let_in("orders", refusal(is_retryable), asked, &mut after);
        assert!(after.ready || !told || state.refused.is_none());
        told
    }

    #[test]
    fn a_final_refusal_is_told_once_behind_what_was_read() {
        let (mut state, keys) = state();
        let mut after = After::default();
        assert!(!refuse(&mut state, true, Asked::ForData));
        assert!(matches!(state.pop(&mut after), Popped::Empty));

        state.deliver(keys[0], Bytes::from_static(b"batch"), 0, false);
        assert!(refuse(&mut state, false, Asked::ForData));
        assert!(matches!(state.pop(&mut after), Popped::Chunk(_)));
        let Popped::Failed(error) = state.pop(&mut after) else {
            panic!("it is not told");
        };
        let text = error.to_string();
        assert!(
            text.contains("user ann") && text.contains("stream orders"),
            "{text}"
        );
        assert!(matches!(state.pop(&mut after), Popped::Empty));
    }

    #[test]
    fn who_may_not_see_the_stream_any_more_is_told_so() {
        let (mut state, _) = state();
        let mut after = After::default();
        let error = WireError::new(ErrorCode::NotAuthorized, "ann may not describe it");
        assert!(state.not_let_in("orders", error.into(), Asked::ForOwners, &mut after));
        let Popped::Failed(error) = state.pop(&mut after) else {
            panic!("it is not told");
        };
        assert_eq!(error.code(), Some(ErrorCode::NotAuthorized));
    }

    #[test]
    fn what_is_over_before_it_is_told_is_not_told() {
        let (mut state, _) = state();
        let mut after = After::default();
        for (asked, other) in [
            (Asked::ForData, Asked::ForOwners),
            (Asked::ForOwners, Asked::ForData),
        ] {
            refuse(&mut state, false, asked);
            state.let_in(other);
            assert!(state.refused.is_some());
            state.let_in(asked);
            assert!(matches!(state.pop(&mut after), Popped::Empty));
        }
    }

    #[test]
    fn who_has_read_everything_is_told_nothing() {
        let (mut state, keys) = state();
        for key in keys {
            state.received(key, Bytes::new(), None, 0, true, &mut After::default());
        }
        assert!(refuse(&mut state, false, Asked::ForData));
        assert!(state.refused.is_none());
    }
}
