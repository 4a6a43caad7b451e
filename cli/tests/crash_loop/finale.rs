//! The end of a run: groups read to the end, and everything is read once more.

use std::time::{Duration, Instant};

use kera_consumer::{Reader, Start};
use kera_history::{Event, Lane, Reader as HistoryReader, payload};
use kera_protocol::v1;
use tokio::time::sleep;

use crate::Plan;
use crate::common::PATIENCE;
use crate::world::{KEYED, LANES, ORDERED, PINNED, SHARED, STREAMLETS, World, hashed};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Waits until both groups have committed everything; records what they claim then.
pub async fn drain(world: &World) -> Result<(), String> {
    for group in [ORDERED, SHARED] {
        // A group that goes on may take as long as a busy machine needs; one that stands still has failed.
        let (mut furthest, mut since) = (0, Instant::now());
        loop {
            let asked = world.recorder().now();
            let request = v1::DescribeGroupRequest {
                group: World::group_name(group).to_owned(),
            };
            let described = world
                .client()
                .group_call(World::group_name(group), PATIENCE, request)
                .await;
            let described = described.map_err(|error| format!("group {group}: {error}"))?;
            let claims = || {
                described
                    .lanes
                    .iter()
                    .map(|lane| (history_lane(KEYED, lane.streamlet, lane.lane), lane))
            };
            world
                .recorder()
                .record_all(claims().map(|(lane, progress)| Event::CommitObserved {
                    group,
                    lane,
                    ordinal: progress.committed,
                    asked,
                }));
            // Lanes of which the group knows nothing yet may well hold records.
            let all = described.lanes.len() as u32 == STREAMLETS * LANES * 2;
            if all && described.lanes.iter().all(|lane| lane.lag == 0) {
                world
                    .recorder()
                    .record_all(claims().map(|(lane, progress)| Event::Drained {
                        reader: HistoryReader::Group(group),
                        lane,
                        ordinal: progress.head_ordinal,
                    }));
                break;
            }
            let committed: u64 = described.lanes.iter().map(|lane| lane.committed).sum();
            if committed > furthest {
                (furthest, since) = (committed, Instant::now());
            }
            if since.elapsed() > PATIENCE {
                return Err(format!(
                    "group {group} did not read to the end: {described:?}"
                ));
            }
            sleep(LOOK_EVERY).await;
        }
    }
    Ok(())
}

fn history_lane(stream: u32, streamlet: u32, lane: u32) -> Lane {
    Lane {
        stream,
        streamlet,
        lane,
    }
}

/// Reads both streams without a group, from their first record to their last, and records what the
/// broker says of them.
pub async fn read_everything(world: &World, plan: &Plan) {
    world.stop();
    for stream in [KEYED, PINNED] {
        let consumer = world.next_consumer();
        for lane in describe(world, plan, stream).await {
            // Retention may go on; what it leaves is told again afterwards.
            world.recorder().record(Event::Positioned {
                reader: HistoryReader::Consumer(consumer),
                lane: history_lane(stream, lane.streamlet, lane.lane),
                ordinal: lane.log_start,
            });
        }
        let reader = Reader::builder()
            .bootstrap(world.address())
            .stream(World::stream_name(stream))
            .start(Start::Earliest)
            .follow(false)
            .open();
        let mut reader = reader.await.expect("a reader can be opened");
        loop {
            let batch = match reader.next_batch().await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(error) => {
                    world.complain(format!("stream {stream} cannot be read: {error}"));
                    return;
                }
            };
            let lane = world.lane(batch.lane());
            let head = Some(batch.head_ordinal());
            let events = batch.records().filter_map(|record| {
                let record = record.ok()?;
                Some(Event::Read {
                    consumer,
                    lease: None,
                    lane,
                    ordinal: record.ordinal,
                    record: record.value.and_then(|value| payload::decode(value).ok()),
                    key: record.key.map(hashed),
                    head,
                })
            });
            let polled = Event::Polled { consumer };
            world
                .recorder()
                .record_all(std::iter::once(polled).chain(events));
        }
        for position in reader.positions() {
            world.recorder().record(Event::Drained {
                reader: HistoryReader::Consumer(consumer),
                lane: world.lane(position.lane),
                ordinal: position.next.ordinal,
            });
        }
        describe(world, plan, stream).await;
    }
}

/// Records what the broker says of a stream to which nobody appends any more.
async fn describe(world: &World, plan: &Plan, stream: u32) -> Vec<v1::LaneDescription> {
    let asked = world.recorder().now();
    let lanes = world.describe(stream).await;
    let lanes = lanes.expect("a stream can be described");
    let mut trimmed = 0;
    for description in &lanes {
        let lane = history_lane(stream, description.streamlet, description.lane);
        let (start, head) = (description.log_start, description.head_ordinal);
        world
            .recorder()
            .record(Event::HeadObserved { lane, head, asked });
        // What lies between the end of a group and the next, or where the next will begin, was given
        // up.
        let groups = &description.groups;
        let ends = groups.iter().map(|group| group.end_ordinal);
        let firsts = groups.iter().map(|group| group.first_ordinal);
        let gaps = [start].into_iter().chain(ends).zip(firsts.chain([head]));
        for (from, to) in gaps.filter(|(from, to)| from < to) {
            world
                .recorder()
                .record(Event::OrdinalGap { lane, from, to });
        }
        if start > 0 {
            trimmed += start;
            world.recorder().record(Event::LogTrimmed { lane, start });
        }
        let retained = plan.trims && stream == PINNED;
        if !retained && start > world.trimmed(lane) {
            world.complain(format!(
                "lane {lane} begins at {start}, it was to be trimmed to {} at most",
                world.trimmed(lane)
            ));
        }
    }
    if plan.trims && trimmed == 0 {
        world.complain(format!("nothing of stream {stream} was trimmed"));
    }
    lanes
}
