//! Delivery handles: cheap, shared by a batch, awaited only if wanted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use kera_protocol::ids::{LaneId, Ordinal, StreamletId};
use parking_lot::Mutex;

use crate::error::ProduceError;
use crate::record::RecordPlace;

/// Where a batch went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) streamlet: StreamletId,
    pub(crate) lane: LaneId,
    pub(crate) base_ordinal: Ordinal,
    /// The broker's time, if records carry that.
    pub(crate) append_time: Option<i64>,
}

pub(crate) type Outcome = Result<Placed, ProduceError>;

impl Placed {
    fn record(&self, index: u32, timestamp: i64) -> RecordPlace {
        RecordPlace {
            streamlet: self.streamlet,
            lane: self.lane,
            ordinal: self.base_ordinal + u64::from(index),
            timestamp: self.append_time.unwrap_or(timestamp),
        }
    }
}

enum State {
    Waiting,
    /// All records share the batch's fate.
    All(Outcome),
    /// The batch was split over several lanes; each record has its own `base_ordinal`.
    Each {
        outcomes: Vec<Option<Outcome>>,
        missing: usize,
    },
}

/// What the handles of one batch's records share.
pub(crate) struct BatchCell {
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    wakers: Vec<Waker>,
}

impl BatchCell {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                state: State::Waiting,
                wakers: Vec::new(),
            }),
        })
    }

    pub(crate) fn complete(&self, outcome: Outcome) {
        let wakers = {
            let mut inner = self.inner.lock();
            inner.state = State::All(outcome);
            std::mem::take(&mut inner.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// From now on each of the `records` records is completed by itself.
    pub(crate) fn split(&self, records: u32) {
        let mut inner = self.inner.lock();
        if matches!(inner.state, State::Waiting) {
            inner.state = State::Each {
                outcomes: vec![None; records as usize],
                missing: records as usize,
            };
        }
    }

    /// Completes one record of a split batch; the outcome's ordinal is the record's own.
    fn complete_one(&self, index: u32, outcome: Outcome) {
        let mut inner = self.inner.lock();
        let State::Each { outcomes, missing } = &mut inner.state else {
            return;
        };
        if let Some(place @ None) = outcomes.get_mut(index as usize) {
            *place = Some(outcome);
            *missing -= 1;
        }
        if *missing == 0 {
            let wakers = std::mem::take(&mut inner.wakers);
            drop(inner);
            wakers.into_iter().for_each(Waker::wake);
        } else {
            // Those who wait for other records keep their place.
            inner.wakers.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Waits until every record of the batch has an outcome; the first error, if any.
    pub(crate) async fn finished(&self) -> Result<(), ProduceError> {
        let mut place = None;
        std::future::poll_fn(|context| {
            let mut inner = self.inner.lock();
            let result = match &inner.state {
                State::All(outcome) => outcome.as_ref().err(),
                State::Each {
                    outcomes,
                    missing: 0,
                } => outcomes.iter().find_map(|outcome| {
                    outcome.as_ref().and_then(|outcome| outcome.as_ref().err())
                }),
                _ => {
                    inner.wait(&mut place, context);
                    return Poll::Pending;
                }
            };
            Poll::Ready(result.map_or(Ok(()), |error| Err(error.clone())))
        })
        .await
    }
}

impl Inner {
    fn result(&self, index: u32, timestamp: i64) -> Option<Result<RecordPlace, ProduceError>> {
        match &self.state {
            State::Waiting => None,
            State::All(outcome) => Some(match outcome {
                Ok(placed) => Ok(placed.record(index, timestamp)),
                Err(error) => Err(error.clone()),
            }),
            State::Each { outcomes, .. } => {
                outcomes
                    .get(index as usize)?
                    .as_ref()
                    .map(|outcome| match outcome {
                        Ok(placed) => Ok(placed.record(0, timestamp)),
                        Err(error) => Err(error.clone()),
                    })
            }
        }
    }

    /// Registers a task, once: its place is remembered by the waiting side.
    fn wait(&mut self, place: &mut Option<u32>, context: &Context<'_>) {
        if let Some(waker) = place.and_then(|place| self.wakers.get_mut(place as usize)) {
            waker.clone_from(context.waker());
            return;
        }
        *place = Some(self.wakers.len() as u32);
        self.wakers.push(context.waker().clone());
    }
}

/// The fate of one record. Await it to learn where the record is; drop it if that does not matter:
/// the record is sent all the same.
///
/// A handle is a pointer shared with all records of its batch, so it costs next to nothing; awaiting
/// the last record of a run is enough to know that earlier ones of the same lane are done too.
pub struct Delivery {
    cell: Arc<BatchCell>,
    timestamp: i64,
    index: u32,
    /// Place among the cell's wakers, once polled.
    place: Option<u32>,
}

impl Delivery {
    pub(crate) fn new(cell: Arc<BatchCell>, index: u32, timestamp: i64) -> Self {
        Self {
            cell,
            timestamp,
            index,
            place: None,
        }
    }

    /// The outcome, if there is one already.
    pub fn result(&self) -> Option<Result<RecordPlace, ProduceError>> {
        self.cell.inner.lock().result(self.index, self.timestamp)
    }

    /// Waits for the outcome, in programs without tasks. A batch that is not full is sent when its
    /// [linger](crate::ProducerBuilder::linger) is over.
    ///
    /// # Errors
    /// The record's, and [`ProduceError::Blocking`].
    pub fn wait(self) -> Result<RecordPlace, ProduceError> {
        kera_rpc::blocking::wait(self)?
    }

    /// True if `other`'s record is in the same batch: they are acknowledged at the same moment.
    pub fn same_batch(&self, other: &Delivery) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell)
    }
}

impl Clone for Delivery {
    /// Another handle of the same record.
    fn clone(&self) -> Self {
        // A place among the wakers belongs to one handle.
        Self::new(self.cell.clone(), self.index, self.timestamp)
    }
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("index", &self.index)
            .field("result", &self.result())
            .finish()
    }
}

impl Future for Delivery {
    type Output = Result<RecordPlace, ProduceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut inner = this.cell.inner.lock();
        if let Some(result) = inner.result(this.index, this.timestamp) {
            return Poll::Ready(result);
        }
        inner.wait(&mut this.place, context);
        Poll::Pending
    }
}

/// Whom a batch's outcome is told to.
pub(crate) enum Targets {
    /// The records of one cell, in order.
    Whole(Arc<BatchCell>),
    /// One record of a cell each, after the original batches were split.
    Each(Vec<(Arc<BatchCell>, u32)>),
}

impl Targets {
    pub(crate) fn complete(&self, outcome: &Outcome) {
        match self {
            Targets::Whole(cell) => cell.complete(outcome.clone()),
            Targets::Each(records) => {
                for (offset, (cell, index)) in records.iter().enumerate() {
                    let own = outcome.clone().map(|placed| Placed {
                        base_ordinal: placed.base_ordinal + offset as u64,
                        ..placed
                    });
                    cell.complete_one(*index, own);
                }
            }
        }
    }

    /// The cells to wait for.
    pub(crate) fn cells(&self, into: &mut Vec<Arc<BatchCell>>) {
        match self {
            Targets::Whole(cell) => into.push(cell.clone()),
            Targets::Each(records) => {
                for (cell, _) in records {
                    if !into.last().is_some_and(|last| Arc::ptr_eq(last, cell)) {
                        into.push(cell.clone());
                    }
                }
            }
        }
    }

    /// The cell and index of record `index` of a batch of `records`, which is being split.
    pub(crate) fn split_off(&self, index: u32, records: u32) -> Option<(Arc<BatchCell>, u32)> {
        match self {
            Targets::Whole(cell) => {
                cell.split(records);
                Some((cell.clone(), index))
            }
            Targets::Each(parts) => parts.get(index as usize).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(base_ordinal: u64) -> Outcome {
        Ok(Placed {
            streamlet: StreamletId(1),
            lane: LaneId(2),
            base_ordinal,
            append_time: None,
        })
    }

    #[tokio::test]
    async fn all_handles_of_a_batch_learn_the_outcome() {
        let cell = BatchCell::new();
        let waiting: Vec<_> = (0..3)
            .map(|index| tokio::spawn(Delivery::new(cell.clone(), index, 7)))
            .collect();
        tokio::task::yield_now().await;
        cell.complete(placed(100));
        for (index, task) in waiting.into_iter().enumerate() {
            let place = task.await.unwrap().unwrap();
            assert_eq!(place.ordinal, 100 + index as u64);
            assert_eq!(place.timestamp, 7);
        }
        assert!(cell.finished().await.is_ok());
    }

    #[tokio::test]
    async fn a_clone_waits_by_itself() {
        let cell = BatchCell::new();
        let first = Delivery::new(cell.clone(), 0, 0);
        let second = first.clone();
        let waiting = [tokio::spawn(first), tokio::spawn(second)];
        tokio::task::yield_now().await;
        cell.complete(placed(9));
        for task in waiting {
            assert_eq!(task.await.unwrap().unwrap().ordinal, 9);
        }
    }

    #[tokio::test]
    async fn records_of_a_split_batch_are_completed_one_by_one() {
        let cell = BatchCell::new();
        let targets = Targets::Whole(cell.clone());
        let parts: Vec<_> = (0..3).map(|i| targets.split_off(i, 3).unwrap()).collect();
        let deliveries: Vec<_> = (0..3).map(|i| Delivery::new(cell.clone(), i, 0)).collect();
        let waiting = tokio::spawn(Delivery::new(cell.clone(), 1, 0));
        tokio::task::yield_now().await;
        Targets::Each(vec![parts[0].clone(), parts[2].clone()]).complete(&placed(50));
        assert_eq!(deliveries[2].result().unwrap().unwrap().ordinal, 51);
        assert!(deliveries[1].result().is_none());
        Targets::Each(vec![parts[1].clone()]).complete(&Err(ProduceError::Closed));
        assert!(waiting.await.unwrap().is_err());
        assert!(cell.finished().await.is_err());
    }
}
