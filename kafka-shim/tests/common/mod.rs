//! A broker in this process, with a Kafka listener, and a client that speaks the protocol by hand.
#![allow(dead_code)]

#[path = "../support/newer.rs"]
pub mod newer_bodies;
pub mod shares;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, InitProducerIdRequest, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use kera_broker::Broker;
use kera_broker::config::BrokerConfig;
use kera_metadata::{StreamConfig, StreamRecord};
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Nothing here takes as long; a test that waits for ever fails instead.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Longer than any test: [`batch`] and others give records times of long ago, and their groups would go at
/// the first look for what is too old.
pub const NEVER: Duration = Duration::from_secs(12 * 3600);

/// A broker and where Kafka clients find it.
pub struct World {
    pub broker: Broker,
    pub kafka: SocketAddr,
    pub dir: TempDir,
}

impl World {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a broker with a configuration that `change` has changed.
    pub async fn with(change: impl FnOnce(&mut BrokerConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::at(dir, change).await
    }

    /// Starts a broker on a data directory.
    pub async fn at(dir: TempDir, change: impl FnOnce(&mut BrokerConfig)) -> Self {
        let mut config = BrokerConfig {
            data_dir: dir.path().join("data"),
            ..BrokerConfig::default()
        };
        config.server.listen = "127.0.0.1:0".into();
        config.http.listen = None;
        config.memory.pool = 256 << 20;
        config.kafka.listen = vec!["127.0.0.1:0".into()];
        config.retention.check_interval = NEVER;
        change(&mut config);
        let broker = Broker::start(config).await.unwrap();
        let listeners = kera_kafka_shim::start(broker.shared().clone())
            .await
            .unwrap();
        Self {
            kafka: listeners.addresses[0],
            broker,
            dir,
        }
    }

    /// Creates a stream.
    pub fn create(&self, name: &str, config: StreamConfig) {
        let record = StreamRecord::new(name, config, 1);
        self.broker.shared().create_stream(record).unwrap();
    }

    /// A stream of `partitions` partitions with the other settings as they are by default.
    pub fn topic(&self, name: &str, partitions: u32) {
        self.create(
            name,
            StreamConfig {
                streamlets: partitions,
                ..StreamConfig::default()
            },
        );
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.kafka).await
    }
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    pub id: &'static str,
    next: i32,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self {
            stream: TcpStream::connect(address).await.unwrap(),
            id: "test",
            next: 0,
        }
    }

    /// Sends a request without waiting for the reply; returns its correlation.
    pub async fn send<Q: Encodable + HeaderVersion>(
        &mut self,
        api: ApiKey,
        version: i16,
        request: &Q,
    ) -> i32 {
        self.try_send(api, version, request).await.unwrap();
        self.next
    }

    /// The same to a broker that may have closed the connection.
    pub async fn try_send<Q: Encodable + HeaderVersion>(
        &mut self,
        api: ApiKey,
        version: i16,
        request: &Q,
    ) -> std::io::Result<()> {
        let out = self.frame_of(api, version, request);
        self.stream.write_all(&out).await
    }

    /// The bytes of a request that is not sent yet.
    pub fn frame_of<Q: Encodable + HeaderVersion>(
        &mut self,
        api: ApiKey,
        version: i16,
        request: &Q,
    ) -> BytesMut {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).unwrap();
        self.frame_around(api, version, Q::header_version(version), &body)
    }

    /// The bytes of a request with this body.
    fn frame_around(
        &mut self,
        api: ApiKey,
        version: i16,
        header_version: i16,
        body: &[u8],
    ) -> BytesMut {
        self.next += 1;
        let mut out = BytesMut::new();
        out.put_i32(0);
        let header = RequestHeader::default()
            .with_request_api_key(api as i16)
            .with_request_api_version(version)
            .with_correlation_id(self.next)
            .with_client_id(Some(StrBytes::from_static_str(self.id)));
        header.encode(&mut out, header_version).unwrap();
        out.extend_from_slice(body);
        let length = out.len() as i32 - 4;
        out[..4].copy_from_slice(&length.to_be_bytes());
        out
    }

    /// The correlation of the newest request.
    pub fn last(&self) -> i32 {
        self.next
    }

    /// Receives one reply as it is.
    pub async fn frame(&mut self) -> std::io::Result<Bytes> {
        let read = async {
            let length = self.stream.read_i32().await?;
            let mut frame = vec![0; length as usize];
            self.stream.read_exact(&mut frame).await?;
            Ok(Bytes::from(frame))
        };
        tokio::time::timeout(PATIENCE, read)
            .await
            .expect("no reply")
    }

    /// Receives the reply to the request of a correlation.
    pub async fn receive<R: Decodable>(
        &mut self,
        api: ApiKey,
        version: i16,
        correlation: i32,
    ) -> R {
        let mut frame = self.frame().await.unwrap();
        let header = ResponseHeader::decode(&mut frame, api.response_header_version(version));
        assert_eq!(header.unwrap().correlation_id, correlation);
        let reply = R::decode(&mut frame, version).unwrap();
        assert_eq!(frame.remaining(), 0, "bytes behind the reply");
        reply
    }

    /// One request, one reply.
    pub async fn call<Q: Encodable + HeaderVersion, R: Decodable>(
        &mut self,
        api: ApiKey,
        version: i16,
        request: &Q,
    ) -> R {
        let correlation = self.send(api, version, request).await;
        self.receive(api, version, correlation).await
    }

    /// InitProducerId, also in the version that the codec's encoder does not know.
    pub async fn init_producer_id<R: Decodable>(
        &mut self,
        version: i16,
        request: &InitProducerIdRequest,
    ) -> R {
        let header = InitProducerIdRequest::header_version(version);
        let body = newer_bodies::init_producer_id(request, version);
        let out = self.frame_around(ApiKey::InitProducerId, version, header, &body);
        self.stream.write_all(&out).await.unwrap();
        self.receive(ApiKey::InitProducerId, version, self.next)
            .await
    }

    /// A request whose body the codec does not encode in this version, and the answer as bytes behind its header.
    pub async fn call_with(&mut self, api: ApiKey, version: i16, body: &[u8]) -> Bytes {
        let header = api.request_header_version(version);
        let out = self.frame_around(api, version, header, body);
        self.stream.write_all(&out).await.unwrap();
        let mut frame = self.frame().await.unwrap();
        let header = ResponseHeader::decode(&mut frame, api.response_header_version(version));
        assert_eq!(header.unwrap().correlation_id, self.next);
        frame
    }

    /// Waits until the broker closes the connection.
    pub async fn closed(&mut self) -> bool {
        let mut byte = [0];
        let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut byte)).await;
        matches!(read.expect("still open"), Ok(0) | Err(_))
    }
}

/// A batch of records that hold `prefix` and their number.
pub fn batch(
    prefix: &str,
    records: usize,
    compression: Compression,
    stamp: ProducerStamp,
) -> Bytes {
    let mut builder = BatchBuilder::new();
    for number in 0..records {
        let value = format!("{prefix}{number}");
        builder
            .push(&NewRecord {
                key: Some(b"k"),
                value: Some(value.as_bytes()),
                headers: &[],
                timestamp: 1_000 + number as i64,
            })
            .unwrap();
    }
    builder.finish(compression, stamp).unwrap()
}
