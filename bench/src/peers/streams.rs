//! Streams with several lanes in each streamlet, made as Kera's own clients do it.

use anyhow::{Context, Result};
use kera_protocol::v1::{AckPolicy, CreateStreamRequest, StreamConfig};
use kera_rpc::Client;

use crate::scenario::Durability;

/// Makes a stream with so many streamlets, and lanes in each, at the broker `address`.
pub fn create(
    address: &str,
    name: &str,
    (streamlets, lanes): (u32, u32),
    durability: Durability,
) -> Result<()> {
    let ack = match durability {
        Durability::Memory => AckPolicy::Memory,
        Durability::Written => AckPolicy::Written,
        Durability::Synced => AckPolicy::Synced,
    };
    let request = CreateStreamRequest {
        name: name.to_owned(),
        config: Some(StreamConfig {
            streamlets: Some(streamlets),
            lanes: Some(lanes),
            ack: Some(ack as i32),
            ..StreamConfig::default()
        }),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let made = runtime.block_on(async {
        let mut streams = Client::connect_to(address)?.streams()?;
        let made = streams.create_stream(request).await;
        made.map_err(|status| anyhow::anyhow!("{}", status.message()))
    });
    made.map(|_| ()).context("the broker refuses the stream")
}
