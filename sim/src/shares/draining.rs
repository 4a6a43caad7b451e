//! What is set for the group before its first member joins, and the end: the group comes to the end of all partitions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    ApiKey, DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse, GroupId,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use tokio::time::sleep;

use super::cluster::{Cluster, words};
use super::{GROUP_NAME, Shared};
use crate::load::PATIENCE;
use crate::os;

const AGAIN: Duration = Duration::from_millis(300);
/// The kind of Kafka's configuration resource that a group is.
const GROUP_RESOURCE: i8 = 32;

/// Sets what the judge goes by.
pub async fn configure(shared: Arc<Shared>) {
    let plan = &shared.plan;
    let settings = [
        ("share.auto.offset.reset", "earliest".to_owned()),
        (
            "share.record.lock.duration.ms",
            plan.lock.as_millis().to_string(),
        ),
        ("share.delivery.count.limit", plan.deliveries.to_string()),
    ];
    let letters = plan.letters().map(|stream| stream.name);
    let letters = letters.map(|name| ("errors.deadletterqueue.topic.name", name));
    let settings = settings.into_iter().chain(letters).map(|(name, value)| {
        AlterableConfig::default()
            .with_name(words(name))
            .with_config_operation(0)
            .with_value(Some(words(&value)))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(GROUP_RESOURCE)
        .with_resource_name(words(GROUP_NAME))
        .with_configs(settings.collect());
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let mut cluster = Cluster::new(shared.addresses(), 0);
    let until = os::now() + PATIENCE;
    loop {
        let asked = async {
            let mut connection = cluster.coordinator().await?;
            let api = ApiKey::IncrementalAlterConfigs;
            let answer = connection.call(api, 1, &request, Duration::ZERO).await;
            let answer: IncrementalAlterConfigsResponse = answer?;
            let refused = answer.responses.iter().find(|one| one.error_code != 0);
            refused.map_or(Ok(()), |refused| Err(format!("{refused:?}")))
        };
        let Err(error) = asked.await else {
            return;
        };
        if os::now() > until {
            let text = format!("the share group's settings cannot be set: {error}");
            return shared.load.complain(text);
        }
        sleep(AGAIN).await;
    }
}

/// Waits until the group says that it is through with everything that was written.
pub async fn drain(shared: Arc<Shared>) {
    let mut cluster = Cluster::new(shared.addresses(), 0);
    let (mut furthest, mut since) = (0, os::now());
    loop {
        let ends = shared.judge.ends();
        let starts = starts(&mut cluster).await;
        let is_through = |starts: &BTreeMap<u32, u64>| {
            let mut ends = ends.iter();
            ends.all(|(partition, end)| starts.get(partition).is_some_and(|start| start >= end))
        };
        if starts.as_ref().is_ok_and(is_through) {
            return;
        }
        let far: u64 = starts.iter().flat_map(BTreeMap::values).sum();
        if far > furthest {
            (furthest, since) = (far, os::now());
        }
        if os::now() - since > PATIENCE {
            let text =
                format!("the share group is not through: {ends:?} are ends, {starts:?} told");
            return shared.load.complain(text);
        }
        sleep(AGAIN).await;
    }
}

/// Where the group stands, by partition.
async fn starts(cluster: &mut Cluster) -> Result<BTreeMap<u32, u64>, String> {
    let group = DescribeShareGroupOffsetsRequestGroup::default()
        .with_group_id(GroupId(words(GROUP_NAME)))
        .with_topics(None);
    let request = DescribeShareGroupOffsetsRequest::default().with_groups(vec![group]);
    let mut connection = cluster.coordinator().await?;
    let api = ApiKey::DescribeShareGroupOffsets;
    let answer = connection.call(api, 0, &request, Duration::ZERO).await;
    let answer: DescribeShareGroupOffsetsResponse = answer?;
    let Some(group) = answer.groups.first().filter(|group| group.error_code == 0) else {
        return Err(format!("{:?}", answer.groups));
    };
    let partitions = group.topics.iter().flat_map(|topic| &topic.partitions);
    let known = partitions.filter_map(|one| {
        let start = u64::try_from(one.start_offset).ok()?;
        Some((one.partition_index as u32, start))
    });
    Ok(known.collect())
}
