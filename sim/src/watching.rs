//! Readers without a group: while there is trouble they begin anew again and again, and ask where lanes end.

use std::sync::Arc;
use std::time::Duration;

use kera_consumer::{ConsumeError, Reader, Start};
use kera_history::{Event, Lane, payload};
use kera_protocol::v1::find_ordinals_request::At;
use kera_rpc::{Client, ClientOptions, RetryPolicy};
use tokio::time::{sleep, timeout};

use crate::dice::Dice;
use crate::load::{Load, hashed};
use crate::os;

/// How often one begins anew at most: each time it may read everything.
const MOST: u32 = 6;
/// Without batches for so long, it asks where lanes end.
const IDLE: Duration = Duration::from_millis(300);

/// Reads until it is told to stop. `first` is the first of as many numbers as it begins anew.
pub async fn run(load: Arc<Load>, first: u32, mut dice: Dice) {
    let client = client(&load);
    for number in first..first + MOST {
        sleep(Duration::from_millis(dice.between(1, 4_000))).await;
        if load.is_stopping() {
            return;
        }
        let stream = dice.below(load.plan.streams.len() as u64) as u32;
        let racks = u64::from(load.plan.racks);
        let rack = (racks > 0).then(|| format!("rack{}", dice.below(racks)));
        let until = os::now() + Duration::from_millis(dice.between(500, 8_000));
        let reader = Watcher {
            load: &load,
            client: &client,
            stream,
            number,
        };
        if let Err(error) = reader.watch(rack, until, &mut dice).await
            && (!error.is_retryable() || matches!(error, ConsumeError::Corrupt { .. }))
        {
            load.complain(format!("reader {number} of stream {stream} ended: {error}"));
        }
    }
}

/// One that does not ask for long.
fn client(load: &Load) -> Client {
    let options = ClientOptions {
        retry: RetryPolicy {
            deadline: Duration::from_secs(2),
            ..Load::retry()
        },
        ..ClientOptions::default()
    };
    Client::new(&load.bootstrap, options).expect("the addresses are addresses")
}

/// One reader.
struct Watcher<'a> {
    load: &'a Load,
    client: &'a Client,
    stream: u32,
    number: u32,
}

impl Watcher<'_> {
    /// Reads from the beginning, near its rack if it has one.
    async fn watch(
        &self,
        rack: Option<String>,
        until: Duration,
        dice: &mut Dice,
    ) -> Result<(), ConsumeError> {
        let (load, consumer) = (self.load, self.number);
        let reader = Reader::builder()
            .bootstrap(&load.bootstrap)
            .stream(load.name(self.stream))
            .start(Start::Earliest)
            .rack(rack.unwrap_or_default())
            .retry(Load::retry());
        let mut reader = reader.open().await?;
        while os::now() < until && !load.is_stopping() {
            if dice.chance(20) {
                self.ask_for_ends().await;
            }
            let Ok(batch) = timeout(IDLE, reader.next_batch()).await else {
                self.ask_for_ends().await;
                continue;
            };
            let Some(batch) = batch? else {
                return Ok(());
            };
            let lane = load.lane(batch.lane());
            let head = Some(batch.head_ordinal());
            let events = batch.records().filter_map(|record| {
                let record = record.ok()?;
                Some(Event::Read {
                    consumer,
                    lease: None,
                    lane,
                    ordinal: record.ordinal,
                    record: record.value.and_then(|value| payload::decode(value).ok()),
                    key: record.key.map(hashed),
                    head,
                })
            });
            load.record_all(std::iter::once(Event::Polled { consumer }).chain(events));
        }
        Ok(())
    }

    /// Records where brokers say that lanes end; nothing if none says so now.
    async fn ask_for_ends(&self) {
        let (load, stream) = (self.load, self.stream);
        let asked = load.moment();
        let Ok(meta) = self.client.stream(load.name(stream)).await else {
            return;
        };
        let Ok(found) = self.client.find_ordinals(&meta, At::Latest(true)).await else {
            return;
        };
        for end in found {
            let lane = Lane {
                stream,
                streamlet: end.streamlet,
                lane: end.lane,
            };
            let head = end.cursor.map_or(0, |cursor| cursor.ordinal);
            load.record(Event::HeadObserved { lane, head, asked });
        }
    }
}
