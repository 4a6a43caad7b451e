//! The producers of the model: idempotent, with many batches in flight, retrying and giving up.

use std::collections::VecDeque;

use kera_history::{Event, FailureOutcome, Record};

use super::{Model, STREAM, STREAMLETS};

#[derive(Debug)]
pub(super) struct Producer {
    id: u32,
    next_seq: u64,
    /// By lane, batches not yet known to be acknowledged, in the order sent.
    queues: Vec<VecDeque<Batch>>,
}

#[derive(Debug)]
struct Batch {
    records: Vec<(Record, u64)>,
    /// Its first ordinal, once it is appended.
    base: Option<u64>,
    /// The acknowledgement is on its way.
    answered: bool,
}

impl Producer {
    pub(super) fn new(id: u32) -> Self {
        Self {
            id,
            next_seq: 0,
            queues: Vec::new(),
        }
    }

    fn queue(&mut self, lane: usize) -> &mut VecDeque<Batch> {
        if lane >= self.queues.len() {
            self.queues.resize_with(lane + 1, VecDeque::new);
        }
        &mut self.queues[lane]
    }

    /// After a kill: what was lost must be appended anew, what survived is a duplicate, and answers
    /// on their way are gone.
    pub(super) fn forget_lost(&mut self, lane: usize, lost: &[(u64, Record, u64)]) {
        for batch in self.queue(lane) {
            batch.answered = false;
            let first = batch.records[0].0;
            if lost.iter().any(|(_, record, _)| *record == first) {
                batch.base = None;
            }
        }
    }
}

impl Model {
    fn any_producer(&mut self) -> usize {
        self.rng.below(self.producers.len() as u64) as usize
    }

    pub(super) fn send(&mut self) {
        let index = self.any_producer();
        let first_key = self.rng.below(12);
        let lane = self.lane_of_key(first_key);
        let mut records = Vec::new();
        let producer = self.producers[index].id;
        self.log(Event::Batched { producer });
        for n in 0..=self.rng.below(4) {
            // Any key of that lane.
            let span = u64::from(STREAMLETS * self.lanes_per_streamlet);
            let key = if n == 0 {
                first_key
            } else {
                first_key % span + span * self.rng.below(3)
            };
            let producer = &mut self.producers[index];
            let record = Record {
                producer: producer.id,
                seq: producer.next_seq,
            };
            producer.next_seq += 1;
            records.push((record, key));
            let streamlet = self.lanes[lane].lane.streamlet;
            self.log(Event::Send {
                record,
                stream: STREAM,
                streamlet: Some(streamlet),
                lane: None,
                key: Some(key),
            });
        }
        self.producers[index].queue(lane).push_back(Batch {
            records,
            base: None,
            answered: false,
        });
    }

    pub(super) fn append(&mut self) {
        if !self.running {
            return;
        }
        let index = self.any_producer();
        let lane = self.rng.below(self.lanes.len() as u64) as usize;
        self.append_from(index, lane);
    }

    /// Appends the producer's first batch of the lane that is not appended.
    fn append_from(&mut self, index: usize, lane: usize) -> bool {
        let queue = self.producers[index].queue(lane);
        let Some(batch) = queue.iter_mut().find(|batch| batch.base.is_none()) else {
            return false;
        };
        let log = &mut self.lanes[lane];
        batch.base = Some(log.next_ordinal);
        for &(record, key) in &batch.records {
            log.records.push((log.next_ordinal, record, key));
            log.next_ordinal += 1;
        }
        log.ends.push(log.next_ordinal);
        true
    }

    /// The broker acknowledges a producer's batches of a lane as far as they are durable.
    pub(super) fn answer_producer(&mut self) {
        let index = self.any_producer();
        let lane = self.rng.below(self.lanes.len() as u64) as usize;
        self.answer(index, lane);
    }

    fn answer(&mut self, index: usize, lane: usize) {
        let (head, lane_id) = (self.lanes[lane].head, self.lanes[lane].lane);
        // Answers are lost, and that of the last batch says of those before it that they are stored.
        let only_last = self.rng.chance(30);
        let mut answers = Vec::new();
        for batch in self.producers[index].queue(lane) {
            let Some(base) = batch.base else { break };
            if base + batch.records.len() as u64 > head {
                break;
            }
            if !batch.answered {
                batch.answered = true;
                let records = batch.records.iter().map(|&(record, _)| record);
                answers.push(records.zip(base..).collect::<Vec<_>>());
            }
        }
        let last = answers.len();
        for (number, batch) in (1..).zip(answers) {
            let unplaced = only_last && number != last;
            self.inboxes[index].extend(batch.into_iter().map(|(record, ordinal)| {
                if unplaced {
                    Event::AckedUnplaced { record }
                } else {
                    Event::Ack {
                        record,
                        lane: lane_id,
                        ordinal,
                    }
                }
            }));
        }
    }

    /// A client got an answer: records it, and acts on it.
    pub(super) fn received(&mut self, client: usize, event: Event) {
        self.log(event.clone());
        if let Event::Ack { record, .. } | Event::AckedUnplaced { record } = event {
            for queue in &mut self.producers[client].queues {
                if queue
                    .front()
                    .is_some_and(|b| b.records.last().is_some_and(|(r, _)| *r == record))
                {
                    queue.pop_front();
                }
            }
        } else {
            self.member_received(client, event);
        }
    }

    /// A producer's deadline passes for all it has in one lane.
    pub(super) fn give_up(&mut self) {
        let index = self.any_producer();
        let lane = self.rng.below(self.lanes.len() as u64) as usize;
        let answered = self.producers[index]
            .queue(lane)
            .iter()
            .take_while(|batch| batch.answered)
            .count();
        let given_up = self.producers[index].queue(lane).split_off(answered);
        for batch in given_up {
            // What never left the client is known not to be stored.
            let outcome = if batch.base.is_none() && self.rng.chance(50) {
                FailureOutcome::Definite
            } else {
                FailureOutcome::Unknown
            };
            for (record, _) in batch.records {
                self.log(Event::Failed { record, outcome });
            }
        }
    }

    pub(super) fn split_anew(&mut self) {
        for index in 0..self.producers.len() {
            let mut waiting = Vec::new();
            for queue in &mut self.producers[index].queues {
                let first = queue.iter().position(|b| b.base.is_none());
                let rest = queue.split_off(first.unwrap_or(queue.len()));
                waiting.extend(rest.into_iter().flat_map(|b| b.records));
            }
            for (record, key) in waiting {
                let lane = self.lane_of_key(key);
                self.producers[index].queue(lane).push_back(Batch {
                    records: vec![(record, key)],
                    base: None,
                    answered: false,
                });
            }
        }
    }

    pub(super) fn finish_sending(&mut self) {
        for index in 0..self.producers.len() {
            for lane in 0..self.lanes.len() {
                while self.append_from(index, lane) {}
            }
        }
        for lane in &mut self.lanes {
            lane.head = lane.next_ordinal;
        }
        for index in 0..self.producers.len() {
            for lane in 0..self.lanes.len() {
                self.answer(index, lane);
            }
        }
        for client in 0..self.inboxes.len() {
            while let Some(event) = self.inboxes[client].pop_front() {
                self.received(client, event);
            }
        }
    }
}
