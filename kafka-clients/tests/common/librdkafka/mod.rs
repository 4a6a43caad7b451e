//! librdkafka, in this process.

mod admin;
mod consume;
mod errors;
mod produce;

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::agent::Client;
use consume::Member;
use produce::Sender;

pub use errors::{name_of, passes};

/// For a call that the library makes.
const CALL: Duration = Duration::from_secs(30);

/// Why a request was not done.
pub enum Refusal {
    Unsupported,
    Failed(String, String),
}

impl From<rdkafka::error::KafkaError> for Refusal {
    fn from(error: rdkafka::error::KafkaError) -> Self {
        let name = errors::name_of_error(&error);
        Self::Failed(name, error.to_string())
    }
}

type Answer = Result<Value, Refusal>;

/// The library's producers, consumers and admin clients that a test opened.
pub struct Librdkafka {
    runtime: Runtime,
    senders: HashMap<String, Sender>,
    members: HashMap<String, Member>,
    admins: HashMap<String, admin::Admin>,
}

impl Librdkafka {
    pub fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        Self {
            runtime: builder
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime"),
            senders: HashMap::new(),
            members: HashMap::new(),
            admins: HashMap::new(),
        }
    }

    fn admin(&mut self, request: &Value) -> &admin::Admin {
        let bootstrap = text(request, "bootstrap");
        self.admins
            .entry(bootstrap.to_owned())
            .or_insert_with(|| admin::Admin::open(bootstrap))
    }

    fn handle(&mut self, request: &Value) -> Answer {
        let op = text(request, "op");
        match op {
            "producer" => {
                let sender = Sender::open(request)?;
                self.senders
                    .insert(text(request, "producer").to_owned(), sender);
                Ok(json!({}))
            }
            "send" => {
                let sender = &self.senders[text(request, "producer")];
                Ok(self.runtime.block_on(sender.send(request)))
            }
            "init_transactions" => {
                self.senders[text(request, "producer")].init()?;
                Ok(json!({}))
            }
            "begin_transaction" | "commit_transaction" | "abort_transaction" => {
                self.senders[text(request, "producer")].transaction(op)?;
                Ok(json!({}))
            }
            "send_offsets" => {
                let member = &self.members[text(request, "consumer")];
                self.senders[text(request, "producer")].send_offsets(request, member)?;
                Ok(json!({}))
            }
            "close_producer" => {
                self.senders.remove(text(request, "producer"));
                Ok(json!({}))
            }
            "consumer" => {
                let member = Member::open(request)?;
                self.members
                    .insert(text(request, "consumer").to_owned(), member);
                Ok(json!({}))
            }
            "close_consumer" => {
                self.members.remove(text(request, "consumer"));
                Ok(json!({}))
            }
            _ if request.get("consumer").is_some() => {
                self.members[text(request, "consumer")].handle(op, request)
            }
            _ => {
                let handle = self.runtime.handle().clone();
                handle.block_on(self.admin(request).handle(op, request))
            }
        }
    }
}

impl Client for Librdkafka {
    fn answer(&mut self, request: &Value) -> Value {
        match self.handle(request) {
            Ok(result) => json!({"ok": result}),
            Err(Refusal::Unsupported) => json!({"unsupported": request["op"]}),
            Err(Refusal::Failed(name, message)) => json!({"error": name, "message": message}),
        }
    }
}

/// What all clients are told.
fn base(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "500")
        .set("topic.metadata.refresh.interval.ms", "1000")
        .set("log_level", "3");
    config
}

fn text<'a>(request: &'a Value, field: &str) -> &'a str {
    request[field].as_str().unwrap_or_default()
}

fn number(request: &Value, field: &str) -> i64 {
    request[field].as_i64().expect("the request has the number")
}

fn partition(request: &Value) -> i32 {
    number(request, "partition") as i32
}

fn partitions(request: &Value) -> Vec<i32> {
    let list = request["partitions"].as_array().expect("partitions");
    list.iter()
        .map(|each| each.as_i64().expect("a partition") as i32)
        .collect()
}
