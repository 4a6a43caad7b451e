//! Streams and consumer groups, administered.

use std::time::Duration;

use kera_protocol::ids::Ordinal;
use kera_protocol::v1::{self, trim_stream_request::To};
pub use kera_protocol::v1::{
    AckPolicy, BatchCheck, Cleanup, CompactStreamResponse, CreatePinRequest, CreatePinResponse,
    DeletePinResponse, DescribeClusterResponse, DescribeGroupResponse, DescribeStreamResponse,
    GroupSummary, LaneBy, LanePosition, ListPinsResponse, PinInfo, PinLoss, PinLossCause,
    PinPolicy, ResetGroupResponse, StartAt, StreamConfig, StreamInfo, TimestampType,
    TrimStreamResponse,
};

use crate::client::Client;
use crate::control_call::ControlCall;
use crate::error::{ChangeError, RpcError};

/// Entries that one answer lists.
const PAGE: u32 = 1_000;
/// How long a coordinator is given to answer; it may have to ask the owners of lanes.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Positions in one request.
const POSITIONS_PER_REQUEST: usize = 1_024;

/// Administers the streams and consumer groups of a cluster: creates, changes, lists, describes and deletes them, and tells
/// which brokers live. Cheap to clone.
///
/// Settings and descriptions are messages of the protocol, which get more fields with time: make them with
/// `..Default::default()`.
///
/// ```no_run
/// use kera_rpc::admin::{AckPolicy, Admin, StreamConfig};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let admin = Admin::connect_to("127.0.0.1:7600")?;
/// let settings = StreamConfig {
///     lanes: Some(4),
///     ack: Some(AckPolicy::Synced.into()),
///     ..StreamConfig::default()
/// };
/// admin.create_stream("clicks", settings).await?;
/// for stream in admin.streams(false).await? {
///     println!("{}", stream.name);
/// }
/// # Ok(())
/// # }
/// ```
///
/// Programs without tasks wait with [`blocking::wait`](crate::blocking::wait):
///
/// ```no_run
/// use kera_rpc::Admin;
/// use kera_rpc::blocking::wait;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let admin = Admin::connect_to("127.0.0.1:7600")?;
/// wait(admin.delete_stream("clicks"))??;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

/// What is deleted of a lane when a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trim {
    /// The records below this ordinal.
    Below(Ordinal),
    /// The records older than this time, milliseconds since 1970.
    Before(u64),
    /// Every record that is durable now.
    Everything,
}

/// Of what a group's positions are reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupPart {
    /// All that it reads.
    #[default]
    Whole,
    /// A lane.
    Lane {
        /// The streamlet.
        streamlet: u32,
        /// Its lane.
        lane: u32,
    },
    /// For groups of Kafka's clients: a stream, also if they have no offsets in it yet.
    Stream(String),
    /// For groups of Kafka's clients: a partition, as they count.
    Partition {
        /// The stream.
        stream: String,
        /// The partition.
        partition: u32,
    },
}

impl Admin {
    /// Administers the cluster of this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Administers the cluster of the brokers at `bootstrap`: one or more HOST:PORT, separated by commas. For TLS and users make a
    /// [`Client`] with options.
    ///
    /// # Errors
    /// [`RpcError::BadAddress`] if one is not HOST:PORT.
    pub fn connect_to(bootstrap: &str) -> Result<Self, RpcError> {
        Client::connect_to(bootstrap).map(Self::new)
    }

    /// The client that makes the calls.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Creates a stream. Settings that are left out are the broker's; without `streamlets` and `lanes` it has one of each.
    ///
    /// # Errors
    /// [`ChangeError`], with code `STREAM_EXISTS` if the name is taken: perhaps by an earlier attempt of this call, which the
    /// error tells then.
    pub async fn create_stream(
        &self,
        name: &str,
        mut settings: StreamConfig,
    ) -> Result<StreamInfo, ChangeError> {
        settings.streamlets.get_or_insert(1);
        if settings.partitions.is_none() {
            settings.lanes.get_or_insert(1);
        }
        let request = v1::CreateStreamRequest {
            name: name.to_owned(),
            config: Some(settings),
        };
        self.client.change(request).await
    }

    /// Changes settings of a stream. Those that are left out stay; lanes only become more.
    ///
    /// # Errors
    /// [`ChangeError`], with code `UNKNOWN_STREAM` if there is none.
    pub async fn alter_stream(
        &self,
        name: &str,
        settings: StreamConfig,
    ) -> Result<StreamInfo, ChangeError> {
        let request = v1::AlterStreamRequest {
            name: name.to_owned(),
            config: Some(settings),
        };
        self.client.change(request).await
    }

    /// Deletes a stream with all of its records: the one that has the name now.
    ///
    /// # Errors
    /// As of [`Client::delete_stream`].
    pub async fn delete_stream(&self, name: &str) -> Result<(), ChangeError> {
        self.client.delete_stream(name).await
    }

    /// Deletes a stream that was looked at, as for somebody to agree: not one that was made again under its name since.
    ///
    /// # Errors
    /// [`ChangeError`], with code `UNKNOWN_STREAM` if it is gone.
    pub async fn delete_exactly(&self, stream: &StreamInfo) -> Result<(), ChangeError> {
        let request = v1::DeleteStreamRequest {
            name: stream.name.clone(),
            id: stream.id.clone(),
        };
        self.client.change(request).await?;
        self.client.forget(&stream.name);
        Ok(())
    }

    /// A stream's id, settings and owners.
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_STREAM` if there is none.
    pub async fn stream(&self, name: &str) -> Result<StreamInfo, RpcError> {
        let request = v1::GetStreamRequest {
            name: name.to_owned(),
        };
        self.client.stream_call(name, request).await
    }

    /// All streams, by name; those that brokers keep for themselves only if `internal`.
    ///
    /// # Errors
    /// [`RpcError`]: none is left out.
    pub async fn streams(&self, internal: bool) -> Result<Vec<StreamInfo>, RpcError> {
        let page = |after| v1::ListStreamsRequest {
            include_internal: internal,
            after,
            max_streams: PAGE,
        };
        let read = |answer: v1::ListStreamsResponse| (answer.streams, answer.more);
        self.all_pages(page, read, |stream| stream.name.clone())
            .await
    }

    /// A stream's lanes: what is stored in each, and how far replicas are.
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_STREAM` if there is none.
    pub async fn describe_stream(&self, name: &str) -> Result<DescribeStreamResponse, RpcError> {
        let request = v1::DescribeStreamRequest {
            name: name.to_owned(),
            local: false,
        };
        self.client.call(request).await
    }

    /// Deletes old records of a stream: of the lane with these numbers of streamlet and lane, or of all. What is trimmed is told by
    /// lane.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn trim_stream(
        &self,
        name: &str,
        lane: Option<(u32, u32)>,
        trim: Trim,
    ) -> Result<TrimStreamResponse, ChangeError> {
        let request = v1::TrimStreamRequest {
            name: name.to_owned(),
            streamlet: lane.map(|(streamlet, _)| streamlet),
            lane: lane.map(|(_, lane)| lane),
            local: false,
            to: Some(match trim {
                Trim::Below(ordinal) => To::Ordinal(ordinal),
                Trim::Before(time) => To::TimestampMs(time),
                Trim::Everything => To::Everything(true),
            }),
        };
        self.client.change(request).await
    }

    /// Pins positions of a stream under a name, or moves the pin of that name: what retention is to delete of the records at
    /// and above them waits for the pin, or is told of, as its policy says. Unless the request says which pin is replaced, it is
    /// the one that has the name now: what arrives late, as a connection was cut off, moves no newer one.
    ///
    /// # Errors
    /// [`ChangeError`], with code `INVALID_ARGUMENT` if somebody else has changed the pin meanwhile.
    pub async fn create_pin(
        &self,
        mut request: CreatePinRequest,
    ) -> Result<CreatePinResponse, ChangeError> {
        if request.stream_id.is_empty() {
            let found = self.client.refresh(&request.stream).await?;
            request.stream_id = found.id.as_bytes().to_vec().into();
        }
        if request.replaces_created_ms.is_none() {
            let found = self.set_at(&request.stream, &request.name).await?;
            request.replaces_created_ms = Some(found);
        }
        self.client.change(request).await
    }

    /// The pins of a stream, or of all, by stream and name, with the bytes that each holds back, and, if asked for, with their
    /// positions.
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_STREAM` if there is no such stream: no pin is left out.
    pub async fn pins(
        &self,
        stream: Option<&str>,
        with_positions: bool,
    ) -> Result<ListPinsResponse, RpcError> {
        let mut all = ListPinsResponse::default();
        let mut request = v1::ListPinsRequest {
            stream: stream.unwrap_or_default().to_owned(),
            without_positions: !with_positions,
            max_pins: PAGE,
            ..v1::ListPinsRequest::default()
        };
        loop {
            let page = self.client.call(request.clone()).await?;
            all.pins.extend(page.pins);
            all.now_ms = page.now_ms;
            all.silent_brokers.extend(page.silent_brokers);
            if page.more_after_stream.is_empty() {
                break;
            }
            request.after_stream = page.more_after_stream;
            request.after_name = page.more_after_name;
        }
        all.pins
            .sort_by(|a, b| (&a.stream, &a.name).cmp(&(&b.stream, &b.name)));
        all.silent_brokers.sort_unstable();
        all.silent_brokers.dedup();
        Ok(all)
    }

    /// A pin with its positions and the bytes that it holds back, if there is one of that name; as [`pins`](Self::pins).
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_STREAM` if there is no such stream.
    pub async fn pin(&self, stream: &str, name: &str) -> Result<ListPinsResponse, RpcError> {
        let request = v1::ListPinsRequest {
            stream: stream.to_owned(),
            name: name.to_owned(),
            ..v1::ListPinsRequest::default()
        };
        self.client.call(request).await
    }

    /// Deletes a pin, and answers it as it was: the one that has the name now. What arrives late deletes no other one that was made
    /// under its name since, nor one that was moved.
    ///
    /// # Errors
    /// [`ChangeError`], with code `INVALID_ARGUMENT` if there is none, or another one by now: perhaps since an earlier attempt of
    /// this call has deleted it, which the error tells then.
    pub async fn delete_pin(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<DeletePinResponse, ChangeError> {
        let found = self.client.refresh(stream).await?;
        let request = v1::DeletePinRequest {
            stream: stream.to_owned(),
            name: name.to_owned(),
            stream_id: found.id.as_bytes().to_vec().into(),
            created_ms: Some(self.set_at(stream, name).await?),
        };
        self.client.change(request).await
    }

    /// When the positions of a pin were set; 0 if there is none.
    async fn set_at(&self, stream: &str, name: &str) -> Result<u64, RpcError> {
        let request = v1::ListPinsRequest {
            stream: stream.to_owned(),
            name: name.to_owned(),
            local: true,
            ..v1::ListPinsRequest::default()
        };
        let found = self.client.call(request).await?;
        Ok(found.pins.first().map_or(0, |pin| pin.created_ms))
    }

    /// Compacts at once what can be compacted of a stream, which its `cleanup` has to ask for; returns when that is done.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn compact_stream(&self, name: &str) -> Result<CompactStreamResponse, ChangeError> {
        let request = v1::CompactStreamRequest {
            name: name.to_owned(),
            local: false,
        };
        self.client.change(request).await
    }

    /// All consumer groups, by name.
    ///
    /// # Errors
    /// [`RpcError`]: none is left out.
    pub async fn groups(&self) -> Result<Vec<GroupSummary>, RpcError> {
        let page = |after| v1::ListGroupsRequest {
            local: false,
            after,
            max_groups: PAGE,
        };
        let read = |answer: v1::ListGroupsResponse| (answer.groups, answer.more);
        self.all_pages(page, read, |group| group.group.clone())
            .await
    }

    /// A group's members, and how far it is in each lane.
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_CONSUMER_GROUP` if there is none.
    pub async fn describe_group(&self, group: &str) -> Result<DescribeGroupResponse, RpcError> {
        let request = v1::DescribeGroupRequest {
            group: group.to_owned(),
        };
        let call = self.client.group_call(group, ANSWER_WITHIN, request);
        call.await
    }

    /// Has a group without members go on elsewhere: at a [`Start`](crate::Start) of what `part` says. Where it stands by then is told.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn reset_group(
        &self,
        group: &str,
        part: GroupPart,
        to: impl Into<StartAt>,
    ) -> Result<ResetGroupResponse, ChangeError> {
        let mut request = v1::ResetGroupRequest {
            group: group.to_owned(),
            to: Some(to.into()),
            ..v1::ResetGroupRequest::default()
        };
        match part {
            GroupPart::Whole => {}
            GroupPart::Lane { streamlet, lane } => {
                request.streamlet = Some(streamlet);
                request.lane = Some(lane);
            }
            GroupPart::Stream(stream) => request.stream = Some(stream),
            GroupPart::Partition { stream, partition } => {
                request.stream = Some(stream);
                request.partition = Some(partition);
            }
        }
        self.change_group(group, request).await
    }

    /// Commits positions of a group from outside, as for those who keep them elsewhere and want its lag to be seen; other lanes
    /// stay. A group that does not exist is made.
    ///
    /// # Errors
    /// [`ChangeError`]: refused while the group has members. Of more than 1,024 positions some may be committed then.
    pub async fn commit_positions(
        &self,
        group: &str,
        stream: &str,
        positions: &[LanePosition],
    ) -> Result<(), ChangeError> {
        let found = self.client.refresh(stream).await?;
        for positions in positions.chunks(POSITIONS_PER_REQUEST) {
            let request = v1::CommitPositionsRequest {
                group: group.to_owned(),
                stream: stream.to_owned(),
                positions: positions.to_vec(),
                stream_id: found.id.as_bytes().to_vec().into(),
            };
            self.change_group(group, request).await?;
        }
        Ok(())
    }

    /// Deletes a group without members: its positions are forgotten.
    ///
    /// # Errors
    /// [`ChangeError`], with code `UNKNOWN_CONSUMER_GROUP` if there is none: perhaps since an earlier attempt of this call has
    /// deleted it, which the error tells then.
    pub async fn delete_group(&self, group: &str) -> Result<(), ChangeError> {
        let request = v1::DeleteGroupRequest {
            group: group.to_owned(),
        };
        self.change_group(group, request).await.map(drop)
    }

    /// The brokers of the cluster, as `kera cluster status` shows them: which live, what they own, and which groups lack replicas.
    ///
    /// # Errors
    /// [`RpcError`], with code `INVALID_ARGUMENT` from a broker that has a store of its own and so is no cluster. Brokers of
    /// versions that do not know the call say so.
    pub async fn cluster(&self) -> Result<DescribeClusterResponse, RpcError> {
        self.client.call(v1::DescribeClusterRequest {}).await
    }

    async fn change_group<R: ControlCall>(
        &self,
        group: &str,
        request: R,
    ) -> Result<R::Reply, ChangeError> {
        let change = self.client.group_change(group, ANSWER_WITHIN, request);
        change.await
    }

    /// All entries of a list that comes in pages, each of which begins after a name.
    async fn all_pages<R: ControlCall, T>(
        &self,
        page: impl Fn(String) -> R,
        read: impl Fn(R::Reply) -> (Vec<T>, bool),
        name: impl Fn(&T) -> String,
    ) -> Result<Vec<T>, RpcError> {
        let mut all: Vec<T> = Vec::new();
        loop {
            let after = all.last().map(&name).unwrap_or_default();
            let (entries, more) = read(self.client.call(page(after)).await?);
            // A page without an entry would be asked for again for ever.
            let is_empty = entries.is_empty();
            all.extend(entries);
            if !more || is_empty {
                return Ok(all);
            }
        }
    }
}
