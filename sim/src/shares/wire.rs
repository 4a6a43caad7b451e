//! A connection to a broker's listener for Kafka's clients.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a connection may take, and an answer beyond what was asked to be waited for.
const ANSWER: Duration = Duration::from_secs(5);
/// No answer is longer.
const MOST_BYTES: usize = 64 << 20;

/// One request at a time. After an error it is of no use.
pub struct Connection {
    stream: TcpStream,
    next: i32,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self, String> {
        match timeout(ANSWER, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => Ok(Self { stream, next: 0 }),
            Ok(Err(error)) => Err(format!("{address}: {error}")),
            Err(_) => Err(format!("{address} does not answer")),
        }
    }

    /// Asks, and waits for the answer; `wait` is how long the broker was asked to wait.
    pub async fn call<Q, R>(
        &mut self,
        api: ApiKey,
        version: i16,
        request: &Q,
        wait: Duration,
    ) -> Result<R, String>
    where
        Q: Encodable + HeaderVersion,
        R: Decodable,
    {
        let asked = self.ask(api, version, request);
        let answer = timeout(wait + ANSWER, asked).await;
        answer.unwrap_or_else(|_| Err(format!("no answer to {api:?}")))
    }

    async fn ask<Q, R>(&mut self, api: ApiKey, version: i16, request: &Q) -> Result<R, String>
    where
        Q: Encodable + HeaderVersion,
        R: Decodable,
    {
        self.next += 1;
        let header = RequestHeader::default()
            .with_request_api_key(api as i16)
            .with_request_api_version(version)
            .with_correlation_id(self.next)
            .with_client_id(Some(StrBytes::from_static_str("sim")));
        let mut out = BytesMut::new();
        out.put_i32(0);
        let encoded = header.encode(&mut out, Q::header_version(version));
        let encoded = encoded.and_then(|()| request.encode(&mut out, version));
        encoded.map_err(|error| format!("{api:?} cannot be encoded: {error}"))?;
        let length = out.len() as i32 - 4;
        out[..4].copy_from_slice(&length.to_be_bytes());
        let mut answer = match self.exchange(&out).await {
            Ok(answer) => answer,
            Err(error) => return Err(format!("{api:?}: {error}")),
        };
        let header = ResponseHeader::decode(&mut answer, api.response_header_version(version));
        let header = header.map_err(|error| format!("the answer to {api:?}: {error}"))?;
        if header.correlation_id != self.next {
            return Err(format!(
                "the answer to {api:?} {} is one to {}",
                self.next, header.correlation_id
            ));
        }
        let decoded = R::decode(&mut answer, version);
        let decoded = decoded.map_err(|error| format!("the answer to {api:?}: {error}"))?;
        match answer.remaining() {
            0 => Ok(decoded),
            more => Err(format!("{more} bytes behind the answer to {api:?}")),
        }
    }

    async fn exchange(&mut self, out: &[u8]) -> std::io::Result<Bytes> {
        self.stream.write_all(out).await?;
        let length = usize::try_from(self.stream.read_i32().await?).unwrap_or(usize::MAX);
        if length > MOST_BYTES {
            let text = format!("an answer of {length} bytes");
            return Err(std::io::Error::other(text));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await?;
        Ok(Bytes::from(answer))
    }
}
