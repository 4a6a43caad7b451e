//! The control service: a backup's requests over gRPC.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use kera_grpc::serve::{CallLimits, CallServer, CallsEnded};
use kera_grpc::v1::backups_server::{Backups, BackupsServer};
use kera_protocol::ids::{Epoch, StreamId};
use kera_protocol::v1;
use prost::Message;
use tokio::sync::{Semaphore, watch};
use tokio_stream::Stream;
use tonic::metadata::{BinaryMetadataValue, MetadataValue};
use tonic::service::Routes;
use tonic::{Code, Response, Status};

use super::client::MAX_MESSAGE_BYTES;
use super::convert::{self, Parsed};
use super::server::ServerOptions;
use crate::backup::ReplicaStore;
use crate::ids::BrokerId;
use crate::transport::{CopyInfo, CopyVersion, MAX_LISTS, Refusal, Reply, Request};

/// The metadata key of a status under which a refusal travels.
pub(super) const REFUSAL_KEY: &str = "kera-refusal-bin";
/// Bytes of one part of a read; copies in one part of a list.
const READ_PART: usize = 256 << 10;
const LIST_PART: usize = 1024;
/// Calls of one connection that are worked on at once; each may wait for a disk.
const CALLS: usize = 64;
/// Those that wait for it, or are answered, among them.
const OPEN_CALLS: u32 = 1024;
/// Flushes and checks of single replicas that are under way at once, of all connections. Each has a thread for as long as the
/// disk takes, also if its caller has given up and asks again: without a limit a disk that stands still takes the threads
/// that everything else waits for.
const SLOW_CALLS: usize = 64;
/// Calls of all connections.
const TOTAL_CALLS: usize = 16_384;
/// How long a broker may take nothing of a reply; those that copy slowly on purpose pause for less.
const REPLY_TAKEN: Duration = Duration::from_secs(120);

type Answer<T> = Result<Response<T>, Status>;
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What serves control calls, until `stopping`.
pub(super) fn server(
    store: Arc<ReplicaStore>,
    options: &ServerOptions,
    stopping: watch::Receiver<bool>,
    freed: Arc<AtomicU64>,
) -> (CallServer, CallsEnded) {
    let service = BackupsServer::new(BackupService::new(store));
    let limits = CallLimits {
        first_call: options.hello_timeout,
        idle: options.idle_timeout,
        receive: options.stall_timeout,
        send: REPLY_TAKEN,
        quiet_connections: options.connections + options.reserved,
        calls: OPEN_CALLS,
        total_calls: TOTAL_CALLS,
        calls_at_work: CALLS,
        connection_bytes: CALLS * MAX_MESSAGE_BYTES,
        total_bytes: 4 * CALLS * MAX_MESSAGE_BYTES,
    };
    let routes = Routes::new(service.max_decoding_message_size(MAX_MESSAGE_BYTES));
    CallServer::new(routes, limits, stopping, freed)
}

/// The service `Backups` over a store.
#[derive(Clone, Debug)]
pub struct BackupService {
    store: Arc<ReplicaStore>,
    slow: Arc<Semaphore>,
}

fn only_changed(changed: &[v1::KnownList]) -> Result<v1::CopyList, Status> {
    Ok(v1::CopyList {
        copies: Vec::new(),
        changed: changed.to_vec(),
        only_changed: true,
    })
}

fn copy_parts(copies: &[CopyInfo]) -> Vec<Result<v1::CopyList, Status>> {
    let parts = copies.chunks(LIST_PART).map(|copies| {
        Ok(v1::CopyList {
            copies: copies.iter().map(convert::info_to).collect(),
            ..v1::CopyList::default()
        })
    });
    parts.collect()
}

impl BackupService {
    /// A service for a listener of the caller's own.
    pub fn new(store: Arc<ReplicaStore>) -> Self {
        let slow = Arc::new(Semaphore::new(SLOW_CALLS));
        Self { store, slow }
    }

    /// A request may wait for a disk, or walk a copy's bytes. Who gives up before its turn takes no thread.
    async fn ask(&self, from: BrokerId, request: Request) -> Result<Reply, Status> {
        let turn = match request {
            Request::Flush { .. } | Request::Check { .. } => {
                self.slow.clone().acquire_owned().await.ok()
            }
            _ => None,
        };
        let store = self.store.clone();
        let answer = move || {
            let _until_it_is_answered = turn;
            store.handle(from, request)
        };
        let answered = tokio::task::spawn_blocking(answer).await;
        match answered {
            Ok(reply) => reply.map_err(|refusal| status_of(&refusal)),
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }

    async fn ask_any(&self, request: Request) -> Result<Reply, Status> {
        // Only `open` is about who asks.
        self.ask(BrokerId::default(), request).await
    }

    /// Lists those of the streamlets whose copies are others than the asker knows.
    async fn list_changed(&self, known: Vec<v1::KnownList>) -> Answer<Parts<v1::CopyList>> {
        if known.len() > MAX_LISTS {
            let text = format!(
                "{} lists are asked for at once, of {MAX_LISTS}",
                known.len()
            );
            return Err(Status::invalid_argument(text));
        }
        let known = known.into_iter().map(convert::known_from);
        let known = parsed(known.collect::<Parsed<Vec<_>>>())?;
        let Reply::Changed(lists) = self.ask_any(Request::ListChanged { known }).await? else {
            return unexpected();
        };
        let changed: Vec<_> = lists.iter().map(convert::changed_to).collect();
        // At least one, which says that no others have changed.
        let mut parts = vec![only_changed(&changed[..changed.len().min(LIST_PART)])];
        let more = changed.chunks(LIST_PART).skip(1);
        parts.extend(more.map(only_changed));
        let copies: Vec<_> = lists.into_iter().flat_map(|list| list.copies).collect();
        parts.extend(copy_parts(&copies));
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }
}

/// A refusal as a status.
fn status_of(refusal: &Refusal) -> Status {
    let code = match refusal {
        // As a process that is not there yet: earlier versions take any refusal for a no.
        Refusal::Starting => return Status::unavailable(refusal.to_string()),
        Refusal::Sealed { .. } | Refusal::NotSealed { .. } | Refusal::OtherIncarnation => {
            Code::FailedPrecondition
        }
        Refusal::Unknown => Code::NotFound,
        Refusal::NoRoom { .. } => Code::ResourceExhausted,
        Refusal::Short { .. } => Code::OutOfRange,
        Refusal::Invalid(_) => Code::InvalidArgument,
        Refusal::Failed(_) => Code::Unavailable,
    };
    let mut status = Status::new(code, refusal.to_string());
    let bytes = convert::refusal_to(refusal).encode_to_vec();
    let value: BinaryMetadataValue = MetadataValue::from_bytes(&bytes);
    status.metadata_mut().insert_bin(REFUSAL_KEY, value);
    status
}

/// The refusal that a status carries; `None` if no backup made it.
pub(super) fn refusal_of(status: &Status) -> Option<Refusal> {
    let value = status.metadata().get_bin(REFUSAL_KEY)?.to_bytes().ok()?;
    let refusal = v1::Refusal::decode(value).ok()?;
    Some(convert::refusal_from(refusal))
}

fn parsed<T>(parsed: Parsed<T>) -> Result<T, Status> {
    parsed.map_err(|reason| status_of(&Refusal::Invalid(reason.into())))
}

fn unexpected<T>() -> Result<T, Status> {
    Err(Status::internal("the store gave another request's reply"))
}

#[tonic::async_trait]
impl Backups for BackupService {
    async fn describe(
        &self,
        _: tonic::Request<v1::DescribeBackupRequest>,
    ) -> Answer<v1::BackupDescription> {
        match self.ask_any(Request::Describe).await? {
            Reply::Description(description) => {
                Ok(Response::new(convert::description_to(&description)))
            }
            _ => unexpected(),
        }
    }

    async fn open(&self, request: tonic::Request<v1::OpenCopyRequest>) -> Answer<v1::OpenedCopy> {
        let (primary, request) = parsed(convert::open_from(request.into_inner()))?;
        match self.ask(primary, request).await? {
            Reply::Opened(opened) => Ok(Response::new(convert::opened_to(&opened))),
            _ => unexpected(),
        }
    }

    async fn flush(
        &self,
        request: tonic::Request<v1::FlushCopyRequest>,
    ) -> Answer<v1::FlushCopyResponse> {
        let request = request.into_inner();
        let request = Request::Flush {
            copy: parsed(convert::copy_from(request.copy))?,
            length: request.length,
            closed: request.closed,
        };
        match self.ask_any(request).await? {
            Reply::Flushed {
                length,
                end_ordinal,
            } => Ok(Response::new(v1::FlushCopyResponse {
                length,
                end_ordinal,
            })),
            _ => unexpected(),
        }
    }

    async fn flush_round(
        &self,
        request: tonic::Request<v1::FlushRoundRequest>,
    ) -> Answer<v1::FlushRoundResponse> {
        let request = parsed(convert::round_from(request.into_inner()))?;
        match self.ask_any(request).await? {
            Reply::FlushedRound(outcomes) => Ok(Response::new(convert::flushed_to(&outcomes))),
            _ => unexpected(),
        }
    }

    async fn seal(&self, request: tonic::Request<v1::SealRequest>) -> Answer<v1::SealResponse> {
        let seals = request.into_inner().seals.into_iter();
        let seals: Parsed<Vec<_>> = seals.map(convert::seal_from).collect();
        let seals = parsed(seals)?;
        let store = self.store.clone();
        let sealed = tokio::task::spawn_blocking(move || store.seal_all(&seals)).await;
        let sealed = sealed.map_err(|error| Status::internal(error.to_string()))?;
        let sealed = sealed.map_err(|refusal| status_of(&refusal))?;
        let sealed = sealed.iter().map(|copies| convert::sealed_to(copies));
        Ok(Response::new(v1::SealResponse {
            sealed: sealed.collect(),
        }))
    }

    async fn complete(
        &self,
        request: tonic::Request<v1::CompleteCopyRequest>,
    ) -> Answer<v1::CompleteCopyResponse> {
        let request = request.into_inner();
        let request = Request::Complete {
            copy: parsed(convert::copy_from(request.copy))?,
            epoch: Epoch(request.epoch),
            segment_size: request.segment_size,
            segments: request.segments,
            address: request.address,
            bytes: request.data,
        };
        self.ask_any(request).await?;
        Ok(Response::new(v1::CompleteCopyResponse {}))
    }

    async fn free(
        &self,
        request: tonic::Request<v1::FreeCopyRequest>,
    ) -> Answer<v1::FreeCopyResponse> {
        let request = request.into_inner();
        let request = Request::free(
            parsed(convert::copy_from(request.copy))?,
            Epoch(request.epoch),
            request.version.map(CopyVersion),
        );
        self.ask_any(request).await?;
        Ok(Response::new(v1::FreeCopyResponse {}))
    }

    async fn forget(
        &self,
        request: tonic::Request<v1::ForgetStreamRequest>,
    ) -> Answer<v1::ForgetStreamResponse> {
        let stream = StreamId::from_slice(&request.into_inner().stream);
        let stream = parsed(stream.ok_or("a stream id has 16 bytes"))?;
        self.ask_any(Request::Forget { stream }).await?;
        Ok(Response::new(v1::ForgetStreamResponse {}))
    }

    async fn check(
        &self,
        request: tonic::Request<v1::CheckCopyRequest>,
    ) -> Answer<v1::CheckCopyResponse> {
        let request = parsed(convert::check_from(request.into_inner()))?;
        match self.ask_any(request).await? {
            Reply::Checked(checked) => Ok(Response::new(convert::checked_to(checked))),
            _ => unexpected(),
        }
    }

    type ReadStream = Parts<v1::CopyBytes>;

    async fn read(&self, request: tonic::Request<v1::ReadCopyRequest>) -> Answer<Self::ReadStream> {
        let request = request.into_inner();
        let request = Request::Read {
            copy: parsed(convert::copy_from(request.copy))?,
            address: request.address,
            len: request.len,
        };
        let Reply::Bytes(bytes) = self.ask_any(request).await? else {
            return unexpected();
        };
        let parts: Vec<_> = (0..bytes.len())
            .step_by(READ_PART)
            .map(|at| bytes.slice(at..bytes.len().min(at + READ_PART)))
            .collect();
        let part = |data: Bytes| Ok(v1::CopyBytes { data });
        let parts = tokio_stream::iter(parts.into_iter().map(part));
        Ok(Response::new(Box::pin(parts)))
    }

    type ListStream = Parts<v1::CopyList>;

    async fn list(
        &self,
        request: tonic::Request<v1::ListCopiesRequest>,
    ) -> Answer<Self::ListStream> {
        let request = request.into_inner();
        if !request.known.is_empty() {
            return self.list_changed(request.known).await;
        }
        let streamlet = request.streamlet;
        let streamlet = streamlet.map(|s| convert::streamlet_from(&s.stream, s.streamlet));
        let streamlet = parsed(streamlet.transpose())?;
        let Reply::Copies(copies) = self.ask_any(Request::List { streamlet }).await? else {
            return unexpected();
        };
        let parts = copy_parts(&copies);
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }
}
