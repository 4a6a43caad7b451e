//! How transactions end: by their producers, by others that have their handles, or by whoever comes next.

use std::time::Duration;

use kera_producer::{Producer, Transaction, TransactionError, TransactionHandle, Transactions};
use kera_protocol::error::ErrorCode;
use tokio::time::sleep;

use super::ledger::Outcome;
use super::producing::{Client, Taken, note};

/// How a transaction ended for whoever asked for a commit.
fn outcome_of(result: &Result<(), TransactionError>) -> Outcome {
    match result {
        Ok(()) | Err(TransactionError::Committed) => Outcome::Committed,
        Err(TransactionError::Unknown { .. }) => Outcome::Unknown,
        Err(_) => Outcome::Aborted,
    }
}

/// What a program is told that asks for an abort.
fn is_aborted(result: &Result<(), TransactionError>) -> Result<bool, String> {
    match result {
        Ok(()) => Ok(true),
        Err(TransactionError::Committed) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

/// What a program is told that asks for a commit.
fn is_committed(result: &Result<(), TransactionError>) -> Result<bool, String> {
    match result {
        Ok(()) => Ok(true),
        Err(TransactionError::Aborted) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

impl Client {
    fn complain(&self, text: &str) {
        self.shared.load.complain(format!("{}: {text}", self.id));
    }

    /// Notes how it ended for its own producer, beside which there was none.
    async fn settle(
        &self,
        transaction: usize,
        result: Result<(), TransactionError>,
        taken: Vec<Taken>,
    ) {
        let outcome = outcome_of(&result);
        self.shared.ledger.ended(transaction, outcome);
        match result {
            Ok(()) => note(&self.shared, taken).await,
            Err(error @ (TransactionError::Unknown { .. } | TransactionError::Committed)) => {
                self.complain(&format!("nobody else ends its transactions: {error}"));
            }
            Err(error) => crate::os::log(&format!("{}: {error}", self.id)),
        }
    }

    pub(super) async fn commit(
        &self,
        transaction: usize,
        begun: Transaction<'_>,
        taken: Vec<Taken>,
        is_spoilt: bool,
    ) {
        if !is_spoilt {
            self.shared.ledger.may_count(transaction);
        }
        let result = begun.commit().await;
        if is_spoilt && result.is_ok() {
            self.complain("a commit succeeded, and a record was refused before");
        }
        self.settle(transaction, result, taken).await;
    }

    pub(super) async fn abort(&self, transaction: usize, begun: Transaction<'_>) {
        let result = begun.abort().await;
        self.shared.ledger.ended(transaction, Outcome::Aborted);
        if let Err(TransactionError::Committed) = result {
            self.complain("an abort says that it was committed, for which nobody asked");
        }
    }

    /// Has it prepared, and ended from elsewhere. Whether its producer goes on.
    pub(super) async fn prepare(
        &mut self,
        transaction: usize,
        begun: Transaction<'_>,
        taken: Vec<Taken>,
        is_spoilt: bool,
    ) -> bool {
        let handle = match begun.prepare().await {
            Ok(Some(handle)) => handle,
            Ok(None) => {
                self.complain("nothing was prepared, and records were appended");
                return true;
            }
            Err(error) => {
                crate::os::log(&format!("{}: not prepared: {error}", self.id));
                self.shared.ledger.ended(transaction, Outcome::Aborted);
                return self.clear_prepared(&error).await;
            }
        };
        if is_spoilt {
            self.complain("it was prepared, and a record was refused before");
        }
        // Longer than its time would be.
        let longest = *self.dice.one(&[0, 1_000, 8_000]);
        let pause = self.up_to(Duration::from_millis(longest));
        sleep(pause).await;
        if self.dice.chance(200) {
            self.no_other_begins().await;
        }
        let here = Transactions::new(self.shared.load.client());
        let there = Transactions::new(self.shared.load.client());
        let ledger = &self.shared.ledger;
        let committed = match self.dice.below(4) {
            0..=1 => {
                ledger.may_count(transaction);
                is_committed(&here.commit(&handle).await)
                    .and_then(|done| done.then_some(true).ok_or("it was aborted".to_owned()))
            }
            2 => is_aborted(&here.abort(&handle).await)
                .and_then(|done| done.then_some(false).ok_or("it was committed".to_owned())),
            _ => {
                ledger.may_count(transaction);
                let (commit, abort) = tokio::join!(here.commit(&handle), there.abort(&handle));
                match (is_committed(&commit), is_aborted(&abort)) {
                    (Ok(committed), Ok(aborted)) if committed != aborted => Ok(committed),
                    other => Err(format!("a commit and an abort at once: {other:?}")),
                }
            }
        };
        match committed {
            Ok(committed) => {
                let outcome = match committed {
                    true => Outcome::Committed,
                    false => Outcome::Aborted,
                };
                ledger.ended(transaction, outcome);
                if committed {
                    note(&self.shared, taken).await;
                }
                self.is_told_again(&there, &handle, committed).await;
            }
            Err(error) => self.complain(&format!("a prepared transaction: {error}")),
        }
        self.dice.chance(500)
    }

    /// How it ended is told again, whatever is asked for.
    async fn is_told_again(
        &mut self,
        all: &Transactions,
        handle: &TransactionHandle,
        committed: bool,
    ) {
        let told = match self.dice.chance(500) {
            true => is_committed(&all.commit(handle).await),
            false => is_aborted(&all.abort(handle).await).map(|aborted| !aborted),
        };
        if told != Ok(committed) {
            self.complain(&format!(
                "committed: {committed}; later it is told otherwise: {told:?}"
            ));
        }
    }

    /// While it is prepared, nobody begins under its id.
    async fn no_other_begins(&self) {
        match self.building().await {
            Ok(_) => self.complain("another began while it was prepared"),
            Err(error) => {
                let code = match &error {
                    kera_producer::BuildError::Rpc(error) => error.code(),
                    _ => None,
                };
                if code != Some(ErrorCode::TransactionPrepared) {
                    self.complain(&format!("another began while it was prepared: {error}"));
                }
            }
        }
    }

    /// Aborts what may be prepared under the id though nobody knows. Whether its producer goes on.
    async fn clear_prepared(&self, error: &TransactionError) -> bool {
        if !matches!(error, TransactionError::Unknown { .. }) {
            return true;
        }
        let all = Transactions::new(self.shared.load.client());
        match all.prepared(&self.id).await {
            Ok(prepared) => {
                for one in prepared {
                    if let Err(error) = all.abort(&one.handle).await {
                        self.complain(&format!("a prepared one cannot be aborted: {error}"));
                    }
                }
            }
            Err(error) => self.complain(&format!("nobody lists what is prepared: {error}")),
        }
        false
    }

    /// Another instance begins, and then this one asks for a commit: that fails.
    pub(super) async fn fenced(
        &self,
        transaction: usize,
        begun: Transaction<'_>,
    ) -> Option<Producer> {
        let second = self.open().await?;
        let result = begun.commit().await;
        if result.is_ok() {
            self.complain("a commit succeeded after another instance had begun");
        }
        self.shared.ledger.ended(transaction, Outcome::Aborted);
        Some(second)
    }

    /// Another instance begins while this one asks for a commit.
    pub(super) async fn raced(
        &self,
        transaction: usize,
        begun: Transaction<'_>,
        taken: Vec<Taken>,
    ) -> Option<Producer> {
        self.shared.ledger.may_count(transaction);
        let (second, result) = tokio::join!(self.open(), begun.commit());
        self.shared.ledger.ended(transaction, outcome_of(&result));
        match result {
            Ok(()) => note(&self.shared, taken).await,
            Err(error) => crate::os::log(&format!("{}: {error}", self.id)),
        }
        second
    }
}
