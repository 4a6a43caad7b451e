//! Control calls to a backup, as the requests that its store answers.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_protocol::v1;
use kera_rpc::v1::backups_client::BackupsClient;
use tonic::Status;
use tonic::transport::Channel;

use super::control::refusal_of;
use super::convert::{self, Parsed};
use crate::ids::BackupId;
use crate::transport::{CallError, MAX_TRANSFER_BYTES, Reply, Request};

/// Largest reply: a list's or a read's part, or the answers to a seal.
const MAX_REPLY_BYTES: usize = 2 * MAX_TRANSFER_BYTES as usize;

/// Asks the backup behind `channel`.
pub(super) async fn call(
    backup: BackupId,
    channel: Channel,
    request: Request,
    within: Duration,
) -> Result<Reply, CallError> {
    let name = request.name();
    let stub = BackupsClient::new(channel)
        .max_decoding_message_size(MAX_REPLY_BYTES)
        .max_encoding_message_size(MAX_REPLY_BYTES);
    let lost = |reason: String| CallError::Lost { backup, reason };
    match tokio::time::timeout(within, ask(stub, request)).await {
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
            within.as_secs_f32()
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

async fn ask(mut stub: BackupsClient<Channel>, request: Request) -> Result<Parsed<Reply>, Status> {
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
            stub.flush(request).await?;
            Ok(Reply::Flushed)
        }
        Request::Seal {
            streamlet,
            epoch,
            copies,
        } => {
            let seals = vec![convert::seal_to(&streamlet, epoch, &copies)];
            let reply = stub.seal(v1::SealRequest { seals }).await?;
            let sealed = reply.into_inner().sealed.pop();
            sealed
                .ok_or("it seals nothing")
                .and_then(convert::sealed_from)
                .map(Reply::Sealed)
        }
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
        Request::Free { copy, epoch } => {
            let request = v1::FreeCopyRequest {
                copy: Some(convert::copy_to(&copy)),
                epoch: epoch.0,
            };
            stub.free(request).await?;
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
