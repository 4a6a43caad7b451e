//! The brokers of the cluster as Kafka's clients see them: those with a listener for them.

use kafka_protocol::messages::BrokerId;
use kafka_protocol::protocol::StrBytes;
use kera_broker::config::ListenerName;
use kera_broker::data::catalog::Stream;
use kera_broker::data::directory::BrokerInfo;

use crate::context::Ctx;
use crate::refusal::text;
use crate::topic;

/// No broker.
pub(crate) const NOBODY: BrokerId = BrokerId(-1);

/// A broker, and where a client reaches it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Endpoint {
    pub(crate) id: BrokerId,
    pub(crate) host: StrBytes,
    pub(crate) port: i32,
    pub(crate) rack: Option<StrBytes>,
}

/// A broker's number as Kafka writes it.
pub(crate) fn node(id: u32) -> BrokerId {
    BrokerId(i32::try_from(id).unwrap_or(i32::MAX))
}

/// This broker's number.
pub(crate) fn me(ctx: &Ctx) -> BrokerId {
    node(ctx.shared.data.directory.me())
}

/// The broker that clients are to send changes to. Any takes them; the one that decides who owns what
/// is told, if clients can reach it.
pub(crate) fn controller(ctx: &Ctx) -> BrokerId {
    let controller = ctx.shared.data.directory.controller();
    let reached = controller.filter(|id| endpoint(ctx, *id).is_some());
    reached.map_or_else(|| me(ctx), node)
}

/// The brokers that live, at the addresses of the listener the client came in by.
pub(crate) fn endpoints(ctx: &Ctx) -> Vec<Endpoint> {
    let directory = &ctx.shared.data.directory;
    let brokers = directory.brokers();
    let asked = brokers.iter().find(|info| info.id == directory.me());
    let found = brokers
        .iter()
        .filter_map(|info| endpoint_of(ctx, asked, info));
    found.collect()
}

/// One of them.
pub(crate) fn endpoint(ctx: &Ctx, id: u32) -> Option<Endpoint> {
    let directory = &ctx.shared.data.directory;
    let asked = directory.broker(directory.me());
    endpoint_of(ctx, asked.as_ref(), &directory.broker(id)?)
}

/// `asked`: this broker.
fn endpoint_of(ctx: &Ctx, asked: Option<&BrokerInfo>, info: &BrokerInfo) -> Option<Endpoint> {
    let listener = &ctx.listener;
    let (host, port) = if info.id == ctx.shared.data.directory.me() {
        (listener.advertised_host.clone(), listener.advertised_port)
    } else {
        let (host, port) = info.kafka_for(
            asked,
            listener.number,
            listener.name.as_ref().map(ListenerName::as_str),
        )?;
        (host.to_owned(), i32::from(port))
    };
    Some(Endpoint {
        id: node(info.id),
        host: text(host),
        port,
        rack: info.rack.clone().map(text),
    })
}

/// Who leads a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) partition: i32,
    /// [`NOBODY`] while the owner is away, or this broker without its lease cannot know whether it still
    /// is the owner: clients look again, at another broker.
    pub(crate) id: BrokerId,
    /// The streamlet's epoch.
    pub(crate) epoch: i32,
    /// The owner, and whoever else holds copies of the streamlet's groups: Java's client fetches from
    /// none that is not among them, whatever the leader says.
    pub(crate) replicas: Vec<BrokerId>,
    /// Those of them that live; nobody while there is no leader.
    pub(crate) in_sync: Vec<BrokerId>,
}

impl Leader {
    /// The replicas that do not live.
    pub(crate) fn offline(&self) -> Vec<BrokerId> {
        if self.id == NOBODY {
            return Vec::new();
        }
        let mut offline = self.replicas.clone();
        offline.retain(|id| !self.in_sync.contains(id));
        offline
    }
}

/// Each partition of a stream with its leader; `endpoints` are the brokers that live.
pub(crate) fn leaders(
    ctx: &Ctx,
    endpoints: &[Endpoint],
    stream: &Stream,
) -> impl Iterator<Item = Leader> + use<> {
    let streamlets = stream.streamlets.iter();
    let leaders = streamlets.map(|streamlet| {
        let owner = ctx.shared.owner_of(&streamlet);
        let id = node(owner.broker);
        let named = ctx.shared.named_owner(&streamlet).is_some();
        let lives = |id: &BrokerId| endpoints.iter().any(|endpoint| endpoint.id == *id);
        let led = lives(&id) && named;
        let holders = ctx.shared.holders_of(&streamlet).into_iter().map(node);
        let others = holders.filter(|holder| *holder != id);
        let replicas: Vec<_> = std::iter::once(id).chain(others).collect();
        let in_sync = replicas.iter().filter(|id| led && lives(id));
        Leader {
            partition: 0,
            id: if led { id } else { NOBODY },
            epoch: owner.epoch.0 as i32,
            in_sync: in_sync.copied().collect(),
            replicas,
        }
    });
    let leaders: Vec<Leader> = leaders.collect();
    let count = leaders.len().max(1);
    (0..topic::partitions(stream)).map(move |partition| Leader {
        partition,
        ..leaders[partition as usize % count].clone()
    })
}
