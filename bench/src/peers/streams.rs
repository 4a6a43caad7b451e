//! Streams with several lanes in each streamlet, made as Kera's own clients do it.

use anyhow::{Context, Result};
use kera_producer::{Producer, Record};
use kera_protocol::v1::{AckPolicy, Cleanup, CreateStreamRequest, StreamConfig};
use kera_rpc::Client;
use kera_rpc::admin::Admin;

use crate::scenario::{Cluster, Durability};

/// Appends one record.
pub(super) fn append_one(address: &str, stream: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let builder = Producer::builder().bootstrap(address).stream(stream);
        let producer = builder.build().await?;
        producer.send(&Record {
            value: Some(b"first"),
            ..Record::default()
        })?;
        Ok(producer.flush().await?)
    })
}

/// Has a stream compacted from now on.
pub(super) fn compact_from_now(address: &str, stream: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let settings = StreamConfig {
            cleanup: Some(Cleanup::Compact as i32),
            ..StreamConfig::default()
        };
        let admin = Admin::connect_to(address)?;
        admin.alter_stream(stream, settings).await?;
        Ok(())
    })
}

/// Makes a stream with so many streamlets, and lanes in each, at the broker `address`; in a cluster
/// with so many copies.
pub(super) fn create(
    address: &str,
    name: &str,
    (streamlets, lanes): (u32, u32),
    durability: Durability,
    cluster: Option<Cluster>,
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
            replicas: cluster.map(|cluster| cluster.replicas),
            min_insync_replicas: cluster.map(|cluster| cluster.least_copies(durability)),
            ..StreamConfig::default()
        }),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let made = runtime.block_on(async {
        let made = Client::connect_to(address)?.change(request).await;
        anyhow::Ok(made.map(drop)?)
    });
    made.context("the broker refuses the stream")
}
