//! Producers.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use futures::future::join_all;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};

use super::super::records::unhex;
use super::consume::Member;
use super::errors::name_of_error;
use super::{CALL, Refusal, base, text};

/// A broker killed at the wrong moment makes the library forget that offsets are to be sent: nothing is under way any more,
/// and the call waits for ever, whatever time it was given. Seen once in some twenty kills.
const FORGOTTEN: Duration = Duration::from_secs(20);

pub struct Sender(FutureProducer);

impl Sender {
    pub fn open(request: &Value) -> Result<Self, Refusal> {
        let setting = |name: &str, default: &str| match &request[name] {
            Value::Null => default.to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let acks = setting("acks", "all");
        let idempotent = acks == "all" && setting("idempotent", "true") == "true";
        let mut config = base(text(request, "bootstrap"));
        config
            .set("acks", &acks)
            .set("enable.idempotence", idempotent.to_string())
            .set("compression.codec", setting("compression", "none"))
            .set("linger.ms", setting("linger_ms", "20"))
            .set("batch.size", setting("batch_bytes", "16384"))
            .set("message.max.bytes", setting("max_request", "1048576"))
            .set("message.timeout.ms", setting("max_block_ms", "60000"))
            .set("allow.auto.create.topics", setting("auto_create", "false"))
            // The library's own default is a CRC32; this is what Kafka's client does.
            .set("partitioner", setting("partitioner", "murmur2_random"));
        if let Some(id) = request["transactional_id"].as_str() {
            config
                .set("transactional.id", id)
                .set("transaction.timeout.ms", setting("transaction_ms", "60000"))
                // The library does not let it be longer.
                .set("message.timeout.ms", setting("transaction_ms", "60000"));
        }
        // How to log in, and what a test sets by name.
        for (name, value) in request["config"].as_object().into_iter().flatten() {
            config.set(name, value.as_str().unwrap_or_default());
        }
        Ok(Self(config.create()?))
    }

    pub fn init(&self) -> Result<(), Refusal> {
        Ok(self.0.init_transactions(CALL)?)
    }

    pub fn transaction(&self, op: &str) -> Result<(), Refusal> {
        match op {
            "begin_transaction" => self.0.begin_transaction()?,
            "commit_transaction" => self.0.commit_transaction(CALL)?,
            _ => self.0.abort_transaction(CALL)?,
        }
        Ok(())
    }

    /// Commits a group's offsets as part of the transaction.
    pub fn send_offsets(&self, request: &Value, member: &Member) -> Result<(), Refusal> {
        let mut list = TopicPartitionList::new();
        for each in request["offsets"].as_array().expect("offsets") {
            let partition = each[0].as_i64().expect("a partition") as i32;
            let offset = each[1].as_i64().expect("an offset");
            list.add_partition_offset(text(request, "topic"), partition, Offset::Offset(offset))?;
        }
        let group = member.group().expect("the consumer has a group");
        let (producer, (done, waited)) = (self.0.clone(), sync_channel(1));
        std::thread::spawn(move || {
            let sent = producer.send_offsets_to_transaction(&list, &group, CALL);
            // Nobody may wait any more.
            let _ = done.send(sent);
        });
        match waited.recv_timeout(FORGOTTEN) {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(Refusal::Failed(
                "REQUEST_TIMED_OUT".to_owned(),
                "the library forgot the call".to_owned(),
            )),
        }
    }

    /// Sends all records, then answers where each of them is, or why it is nowhere.
    pub async fn send(&self, request: &Value) -> Value {
        let topic = text(request, "topic");
        let bytes = |value: &Value| value.as_str().map(unhex);
        let mut sent = Vec::new();
        for record in request["records"].as_array().expect("records") {
            let (key, value) = (bytes(&record["key"]), bytes(&record["value"]));
            let mut headers = OwnedHeaders::new();
            for header in record["headers"].as_array().into_iter().flatten() {
                let value = bytes(&header[1]);
                headers = headers.insert(Header {
                    key: header[0].as_str().expect("a name"),
                    value: value.as_ref(),
                });
            }
            let mut new = FutureRecord::<Vec<u8>, Vec<u8>>::to(topic).headers(headers);
            new.key = key.as_ref();
            new.payload = value.as_ref();
            new.partition = record["partition"].as_i64().map(|number| number as i32);
            new.timestamp = record["timestamp"].as_i64();
            sent.push(self.0.send_result(new).map_err(|(error, _)| error));
        }
        let outcome = |result: Result<_, _>| match result {
            Ok(future) => Ok(future),
            Err(error) => {
                Err(json!({"error": name_of_error(&error), "message": error.to_string()}))
            }
        };
        join_all(sent.into_iter().map(outcome).map(|each| async move {
            match each {
                Err(answer) => answer,
                Ok(future) => match future.await {
                    Ok(Ok(delivery)) => {
                        json!({"partition": delivery.partition, "offset": delivery.offset})
                    }
                    Ok(Err((error, _))) => {
                        json!({"error": name_of_error(&error), "message": error.to_string()})
                    }
                    Err(_) => json!({"error": "CLIENT:Canceled", "message": "never delivered"}),
                },
            }
        }))
        .await
        .into()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // All was waited for already.
        let _ = self.0.flush(Duration::from_secs(5));
    }
}
