//! Readers without a group: while there is trouble they begin anew again and again, and ask where lanes end.

use std::sync::Arc;
use std::time::Duration;

use kera_consumer::ConsumeError;
use kera_history::{Event, Lane};
use kera_protocol::v1::find_ordinals_request::At;
use kera_rpc::{Client, ClientOptions, RetryPolicy};
use tokio::time::timeout;

use crate::anew::{self, MOST};
use crate::dice::Dice;
use crate::load::Load;
use crate::os;

/// Without batches for so long, it asks where lanes end.
const IDLE: Duration = Duration::from_millis(300);

/// Reads until it is told to stop. `first` is the first of as many numbers as it begins anew.
pub async fn run(load: Arc<Load>, first: u32, mut dice: Dice) {
    let client = client(&load);
    for number in first..first + MOST {
        if !anew::begins(&load, &mut dice).await {
            return;
        }
        let stream = dice.below(load.plan.streams.len() as u64) as u32;
        let rack = anew::rack(&load, &mut dice);
        let until = os::now() + Duration::from_millis(dice.between(500, 8_000));
        let reader = Watcher {
            load: &load,
            client: &client,
            stream,
            number,
        };
        let outcome = reader.watch(rack, until, &mut dice).await;
        let who = format_args!("reader {number} of stream {stream}");
        anew::ended(&load, who, outcome);
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
        let load = self.load;
        let reader = anew::reader(load, load.name(self.stream), rack);
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
            anew::record_read(load, self.number, &batch);
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
