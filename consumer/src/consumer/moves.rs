//! Lanes that are not delivered for a while, and lanes that go on elsewhere.

use kera_protocol::ids::LaneKey;
use kera_protocol::v1::Cursor;

use super::Consumer;
use crate::config::{Order, Seek};
use crate::error::ConsumeError;
use crate::group::LeaseKey;

impl Consumer {
    /// Delivers nothing more of a lane until [`resume`](Self::resume): for whoever waits for something that concerns it alone, as
    /// a table that is being loaded. Its lease is kept, and what arrived of it and was not delivered is let go, so that it takes
    /// no memory from other lanes; [`metrics`](Self::metrics) count no lag of it. It need not be held: a lease of it that comes later is paused too.
    pub fn pause(&mut self, streamlet: u32, lane: u32) {
        self.group.pause((streamlet, lane));
        self.let_go(streamlet, lane);
    }

    /// Goes on with a lane that was [paused](Self::pause), where it stood. Does nothing with any other.
    pub fn resume(&mut self, streamlet: u32, lane: u32) {
        self.group.resume((streamlet, lane));
    }

    /// The lanes that are [paused](Self::pause): streamlet and lane, in order.
    pub fn paused(&self) -> Vec<(u32, u32)> {
        self.group.paused()
    }

    /// Goes on elsewhere in one lane of which this member holds the lease: at a stored cursor, an ordinal, a time, or an end of the
    /// lane. Batches delivered later come from there. A paused lane stays so.
    ///
    /// Forward, what is passed over counts as processed, once all that was delivered before it is. Backward, what was delivered from
    /// there on is delivered again; it is not processed until it is committed or marked anew, or, with automatic commits, delivered
    /// anew. For instance to try a batch once more:
    ///
    /// ```no_run
    /// # async fn example(consumer: &mut kera_consumer::Consumer) -> Result<(), kera_consumer::ConsumeError> {
    /// # fn process(_: &kera_consumer::Batch) -> bool { true }
    /// let batch = consumer.next_batch().await?;
    /// if !process(&batch) {
    ///     let lane = batch.lane();
    ///     let again = kera_consumer::Start::Ordinal(batch.first_ordinal());
    ///     consumer.seek(lane.streamlet.0, lane.lane.0, again).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConsumeError::NotHeld`] if this member holds no lease of the lane. [`ConsumeError::Committed`] if the group has committed
    /// what lies there: of a commit that is under way the answer is waited for, no longer than [`commit`](Self::commit) does.
    /// [`ConsumeError::Setting`] if the group's order is another than [`Order::Lane`], where members read what the
    /// group deals out. [`ConsumeError::Rpc`] if the broker was asked and not reached, or did not answer a commit of which it
    /// is not known then whether it has taken effect. In all these cases nothing changes.
    pub async fn seek(
        &mut self,
        streamlet: u32,
        lane: u32,
        to: impl Into<Seek>,
    ) -> Result<(), ConsumeError> {
        if self.group.order() != Order::Lane {
            return Err(ConsumeError::Setting {
                setting: "order",
                reason: "members of this group read what it deals out to them: a position can be chosen with order = lane"
                    .to_owned(),
            });
        }
        let place = (streamlet, lane);
        let to = self.group.find(place, to.into()).await?;
        let stood = self.group.seek(place, to).await?;
        self.let_go(streamlet, lane);
        let of_lane = |(lease, _): &mut (LeaseKey, Cursor)| self.group.is_of(*lease, place);
        if let Some((lease, next)) = self.previous.take_if(of_lane)
            && self.auto_commit
        {
            // What is delivered again is not.
            let next = if to.ordinal < stood { to } else { next };
            // Its lease may have ended meanwhile; then another consumer has the records.
            let _ = self.group.processed(lease, next);
        }
        Ok(())
    }

    /// Forgets what was taken of a lane and not delivered.
    fn let_go(&mut self, streamlet: u32, lane: u32) {
        let is_it = |key: LaneKey| (key.streamlet.0, key.lane.0) == (streamlet, lane);
        self.opened.take_if(|opened| is_it(opened.batch.lane()));
        self.current.take_if(|reader| is_it(reader.chunk.lane));
    }
}
