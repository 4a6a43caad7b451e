//! Control calls to a backup, as the requests that its store answers.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_grpc::v1::backups_client::BackupsClient;
use kera_protocol::v1;
use tonic::Status;
use tonic::transport::Channel;

use super::control::refusal_of;
use super::convert::{self, Parsed};
use crate::ids::BrokerId;
use crate::transport::{
    CallError, ChangedList, CopyInfo, KnownList, MAX_TRANSFER_BYTES, Reply, Request, SealedCopy,
};

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
            let request = v1::ListCopiesRequest {
                streamlet: streamlet.map(convert::streamlet_to),
                known: Vec::new(),
            };
            let parts = stub.list(request).await?.into_inner();
            match listed(parts).await? {
                Ok(listed) => Ok(Reply::Copies(listed.copies)),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        Request::ListChanged { known } => {
            let request = v1::ListCopiesRequest {
                known: known.iter().map(convert::known_to).collect(),
                ..v1::ListCopiesRequest::default()
            };
            let parts = stub.list(request).await?.into_inner();
            match listed(parts).await? {
                Ok(listed) => Ok(Reply::Changed(listed.by_streamlet(&known))),
                Err(reason) => return Ok(Err(reason)),
            }
        }
    })
}

/// What a list said.
#[derive(Default)]
struct Listed {
    copies: Vec<CopyInfo>,
    /// The streamlets whose lists have changed, if the broker says which have.
    changed: Option<Vec<KnownList>>,
}

impl Listed {
    /// The lists that have changed; all that are `known`, if the broker does not say which.
    fn by_streamlet(self, known: &[KnownList]) -> Vec<ChangedList> {
        let lists: BTreeMap<_, _> = match self.changed {
            Some(changed) => changed.iter().map(|one| (one.streamlet, one.tag)).collect(),
            None => known.iter().map(|one| (one.streamlet, None)).collect(),
        };
        let mut copies: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for info in self.copies {
            copies.entry(info.copy.streamlet).or_default().push(info);
        }
        let lists = lists.into_iter().map(|(streamlet, tag)| ChangedList {
            streamlet,
            tag,
            copies: copies.remove(&streamlet).unwrap_or_default(),
        });
        lists.collect()
    }
}

async fn listed(mut parts: tonic::Streaming<v1::CopyList>) -> Result<Parsed<Listed>, Status> {
    let mut out = Listed::default();
    while let Some(part) = parts.message().await? {
        if part.only_changed {
            let changed = part.changed.into_iter().map(convert::known_from);
            match changed.collect::<Parsed<Vec<_>>>() {
                Ok(changed) => out.changed.get_or_insert_default().extend(changed),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        for listed in part.copies {
            match convert::info_from(listed) {
                Ok(info) => out.copies.push(info),
                Err(reason) => return Ok(Err(reason)),
            }
        }
    }
    Ok(Ok(out))
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

#[cfg(test)]
mod tests {
    use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};

    use super::*;
    use crate::ids::{CopyId, StreamletKey};
    use crate::transport::{CopyState, CopyVersion, ListTag};

    fn streamlet(number: u32) -> StreamletKey {
        StreamletKey {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(number),
        }
    }

    fn info(number: u32) -> CopyInfo {
        let copy = CopyId {
            streamlet: streamlet(number),
            group: GroupId(1),
            epoch: Epoch(2),
            generation: 0,
        };
        CopyInfo {
            copy,
            version: CopyVersion(3),
            state: CopyState::Flushed,
        }
    }

    fn known(number: u32) -> KnownList {
        KnownList {
            streamlet: streamlet(number),
            tag: Some(ListTag::new(9)),
        }
    }

    fn changed(number: u32, tag: Option<ListTag>, copies: Vec<CopyInfo>) -> ChangedList {
        ChangedList {
            streamlet: streamlet(number),
            tag,
            copies,
        }
    }

    #[test]
    fn a_broker_that_does_not_know_tags_has_sent_all_lists_and_more() {
        let listed = Listed {
            copies: vec![info(1), info(3)],
            changed: None,
        };
        let lists = listed.by_streamlet(&[known(1), known(2)]);
        let all = [changed(1, None, vec![info(1)]), changed(2, None, vec![])];
        assert_eq!(lists, all);
    }

    #[test]
    fn a_list_that_is_not_named_as_changed_stays_as_it_was() {
        let listed = Listed {
            copies: vec![info(2)],
            changed: Some(vec![known(2)]),
        };
        let lists = listed.by_streamlet(&[known(1), known(2)]);
        assert_eq!(lists, [changed(2, known(2).tag, vec![info(2)])]);
    }
}
