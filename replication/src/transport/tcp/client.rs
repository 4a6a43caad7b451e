//! Control calls to a backup, as the requests that its store answers.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_protocol::v1;
use kera_rpc::v1::backups_client::BackupsClient;
use tonic::Status;
use tonic::transport::Channel;

use super::control::refusal_of;
use super::convert::{self, Parsed};
use crate::ids::BrokerId;
use crate::transport::{CallError, MAX_TRANSFER_BYTES, Reply, Request, SealedCopy};

/// Largest request or reply: a transfer, and what names it.
pub(super) const MAX_MESSAGE_BYTES: usize = MAX_TRANSFER_BYTES as usize + (64 << 10);

/// No call takes longer, whatever its caller allows: one may write a whole group to disk.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

type Stub = BackupsClient<Channel>;

fn stub(channel: Channel) -> Stub {
    BackupsClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// Asks the backup behind `channel`; seals go by [`seal`].
pub(super) async fn call(
    backup: BrokerId,
    channel: Channel,
    request: Request,
) -> Result<Reply, CallError> {
    let name = request.name();
    answered(backup, name, ask(stub(channel), request)).await
}

/// Seals streamlets, all or none, and returns what each has there, in their order.
pub(super) async fn seal(
    backup: BrokerId,
    channel: Channel,
    seals: Vec<v1::StreamletSeal>,
) -> Result<Vec<Vec<SealedCopy>>, CallError> {
    let asked = seals.len();
    let mut stub = stub(channel);
    let asking = async move {
        let reply = stub.seal(v1::SealRequest { seals }).await?.into_inner();
        if reply.sealed.len() != asked {
            return Ok(Err("it answers for other streamlets"));
        }
        let sealed = reply.sealed.into_iter().map(convert::sealed_from);
        Ok(sealed.collect())
    };
    answered(backup, "seal", asking).await
}

async fn answered<T>(
    backup: BrokerId,
    name: &'static str,
    asking: impl Future<Output = Result<Parsed<T>, Status>>,
) -> Result<T, CallError> {
    let lost = |reason: String| CallError::Lost { backup, reason };
    match tokio::time::timeout(CALL_TIMEOUT, asking).await {
        Ok(Ok(Ok(reply))) => Ok(reply),
        Ok(Ok(Err(reason))) => Err(lost(format!(
            "its answer to {name} makes no sense: {reason}"
        ))),
        Ok(Err(status)) => Err(match refusal_of(&status) {
            Some(refusal) => CallError::Refused { backup, refusal },
            None => lost(format!("{name}: {}", reason_of(&status))),
        }),
        Err(_) => Err(lost(format!(
            "{name} took longer than {} s",
            CALL_TIMEOUT.as_secs_f32()
        ))),
    }
}

/// The innermost cause, which names what the system said.
fn reason_of(status: &Status) -> String {
    let mut reason = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        reason = cause.to_string();
        source = cause.source();
    }
    reason
}

async fn ask(mut stub: Stub, request: Request) -> Result<Parsed<Reply>, Status> {
    Ok(match request {
        Request::Describe => {
            let reply = stub.describe(v1::DescribeBackupRequest {}).await?;
            convert::description_from(reply.into_inner()).map(Reply::Description)
        }
        Request::Open {
            copy,
            incarnation,
            primary,
            segment_size,
            segments,
            address,
            bytes,
        } => {
            let request = v1::OpenCopyRequest {
                copy: Some(convert::copy_to(&copy)),
                incarnation: Some(convert::incarnation_to(&incarnation)),
                primary: primary.0,
                segment_size,
                segments,
                address,
                bytes,
            };
            let reply = stub.open(request).await?;
            Ok(Reply::Opened(convert::opened_from(reply.into_inner())))
        }
        Request::Flush {
            copy,
            length,
            closed,
        } => {
            let copy = Some(convert::copy_to(&copy));
            let request = v1::FlushCopyRequest {
                copy,
                length,
                closed,
            };
            let reply = stub.flush(request).await?.into_inner();
            Ok(Reply::Flushed {
                length: reply.length,
                end_ordinal: reply.end_ordinal,
            })
        }
        Request::FlushRound { copies } => {
            let reply = stub.flush_round(convert::round_to(&copies)).await?;
            Ok(Reply::FlushedRound(convert::flushed_from(
                reply.into_inner(),
            )))
        }
        Request::Seal(_) => Err("seals go with others"),
        Request::Complete {
            copy,
            epoch,
            segment_size,
            segments,
            address,
            bytes,
        } => {
            let request = v1::CompleteCopyRequest {
                copy: Some(convert::copy_to(&copy)),
                epoch: epoch.0,
                segment_size,
                segments,
                address,
                data: bytes,
            };
            stub.complete(request).await?;
            Ok(Reply::Done)
        }
        Request::Read { copy, address, len } => {
            let request = v1::ReadCopyRequest {
                copy: Some(convert::copy_to(&copy)),
                address,
                len,
            };
            let parts = stub.read(request).await?.into_inner();
            read(parts, len as usize).await?.map(Reply::Bytes)
        }
        Request::Check {
            copy,
            from,
            bytes,
            end,
        } => {
            let request = convert::check_to(&copy, from, bytes, end);
            let reply = stub.check(request).await?.into_inner();
            Ok(Reply::Checked(convert::checked_from(reply)))
        }
        Request::Free {
            copy,
            epoch,
            version,
        } => {
            let request = v1::FreeCopyRequest {
                copy: Some(convert::copy_to(&copy)),
                epoch: epoch.0,
                version: version.map(|version| version.0),
            };
            stub.free(request).await?;
            Ok(Reply::Done)
        }
        Request::Forget { stream } => {
            let stream = Bytes::copy_from_slice(stream.as_bytes());
            stub.forget(v1::ForgetStreamRequest { stream }).await?;
            Ok(Reply::Done)
        }
        Request::List { streamlet } => {
            let streamlet = streamlet.map(|s| v1::StreamletName {
                stream: Bytes::copy_from_slice(s.stream.as_bytes()),
                streamlet: s.streamlet.0,
            });
            let request = v1::ListCopiesRequest { streamlet };
            let mut parts = stub.list(request).await?.into_inner();
            let mut copies = Vec::new();
            while let Some(part) = parts.message().await? {
                for listed in part.copies {
                    match convert::info_from(listed) {
                        Ok(info) => copies.push(info),
                        Err(reason) => return Ok(Err(reason)),
                    }
                }
            }
            Ok(Reply::Copies(copies))
        }
    })
}

async fn read(
    mut parts: tonic::Streaming<v1::CopyBytes>,
    len: usize,
) -> Result<Parsed<Bytes>, Status> {
    let mut bytes = BytesMut::new();
    while let Some(part) = parts.message().await? {
        if part.data.len() > len - bytes.len() {
            return Ok(Err("more bytes than were asked"));
        }
        bytes.extend_from_slice(&part.data);
    }
    Ok(Ok(bytes.freeze()))
}
