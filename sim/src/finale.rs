//! The end of a run: the group reads to the end, and everything is read once more.

use std::sync::Arc;
use std::time::Duration;

use kera_history::{Event, Lane, Reader};
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use tokio::time::{sleep, timeout};

use crate::anew;
use crate::load::{GROUP, GROUP_NAME, Load, MAX_BATCH_BYTES, PATIENCE};
use crate::os;

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// What ordinals go up by when the metadata store is put back.
const JUMP: u64 = 1 << 32;

fn lane_of(stream: u32, streamlet: u32, lane: u32) -> Lane {
    Lane {
        stream,
        streamlet,
        lane,
    }
}

/// Waits until the group has committed everything; records what it claims then.
pub async fn drain(load: Arc<Load>) {
    let client = load.client();
    let stream = &load.plan.streams[0];
    let (mut furthest, mut since) = (0, os::now());
    loop {
        let asked = load.moment();
        let request = v1::DescribeGroupRequest {
            group: GROUP_NAME.to_owned(),
        };
        let described = client.group_call(GROUP_NAME, PATIENCE, request);
        let described = match described.await {
            Ok(described) => described,
            // Its members may all have been kept from joining until now.
            Err(error)
                if error.code() == Some(ErrorCode::UnknownConsumerGroup)
                    && !load.has_joined()
                    && os::now() - since < PATIENCE =>
            {
                sleep(LOOK).await;
                continue;
            }
            Err(error) => return load.complain(format!("the group cannot be described: {error}")),
        };
        for progress in &described.lanes {
            load.record(Event::CommitObserved {
                group: GROUP,
                lane: lane_of(0, progress.streamlet, progress.lane),
                ordinal: progress.committed,
                asked,
            });
        }
        // Lanes of which the group knows nothing yet may well hold records.
        let all = described.lanes.len() as u32 == stream.streamlets * stream.lanes;
        if all && described.lanes.iter().all(|lane| lane.lag == 0) {
            for progress in &described.lanes {
                load.record(Event::Drained {
                    reader: Reader::Group(GROUP),
                    lane: lane_of(0, progress.streamlet, progress.lane),
                    ordinal: progress.head_ordinal,
                });
            }
            return;
        }
        let committed: u64 = described.lanes.iter().map(|lane| lane.committed).sum();
        if committed > furthest {
            (furthest, since) = (committed, os::now());
        }
        if os::now() - since > PATIENCE {
            return load.complain(format!("the group did not read to the end: {described:?}"));
        }
        sleep(LOOK).await;
    }
}

/// Reads all streams without a group, and records what brokers say of them. `consumer` is the first of as many numbers
/// as there are streams.
pub async fn read_everything(load: Arc<Load>, consumer: u32) {
    for stream in 0..load.plan.streams.len() as u32 {
        let consumer = consumer + stream;
        let Some(lanes) = describe(&load, stream).await else {
            return;
        };
        for lane in lanes {
            load.record(Event::Positioned {
                reader: Reader::Consumer(consumer),
                lane: lane_of(stream, lane.streamlet, lane.lane),
                ordinal: lane.log_start,
            });
        }
        match timeout(PATIENCE, read(&load, stream, consumer)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => load.complain(format!("stream {stream} cannot be read: {error}")),
            Err(_) => load.complain(format!("stream {stream} is not read to its end in time")),
        }
        describe(&load, stream).await;
    }
}

async fn read(load: &Load, stream: u32, consumer: u32) -> Result<(), kera_consumer::ConsumeError> {
    let reader = anew::reader(load, load.name(stream), None).follow(false);
    let mut reader = reader.open().await?;
    while let Some(batch) = reader.next_batch().await? {
        anew::record_read(load, consumer, &batch);
    }
    for position in reader.positions() {
        load.record(Event::Drained {
            reader: Reader::Consumer(consumer),
            lane: load.lane(position.lane),
            ordinal: position.next.ordinal,
        });
    }
    Ok(())
}

/// Records what brokers say of a stream to which nobody appends any more.
async fn describe(load: &Load, stream: u32) -> Option<Vec<v1::LaneDescription>> {
    let asked = load.moment();
    let client = load.client();
    let until = os::now() + PATIENCE;
    let lanes = loop {
        let request = v1::DescribeStreamRequest {
            name: load.name(stream).to_owned(),
            local: false,
        };
        let call = client.call(request);
        let told = match call.await {
            Ok(described) if described.unrecovered.is_empty() => break described.lanes,
            Ok(described) => format!("{:?} are not served", described.unrecovered),
            Err(error) => error.to_string(),
        };
        if os::now() > until {
            load.complain(format!("stream {stream} cannot be described: {told}"));
            return None;
        }
        sleep(LOOK).await;
    };
    for description in &lanes {
        let lane = lane_of(stream, description.streamlet, description.lane);
        let (start, head) = (description.log_start, description.head_ordinal);
        load.record(Event::HeadObserved { lane, head, asked });
        // What lies between the end of a group and the next, or where the next will begin, was given up.
        let groups = &description.groups;
        let ends = groups.iter().map(|group| group.end_ordinal);
        let firsts = groups.iter().map(|group| group.first_ordinal);
        let gaps = [start].into_iter().chain(ends).zip(firsts.chain([head]));
        // A state from before a trim may know groups on both sides of what the trim has removed.
        let removed = match load.was_put_back() {
            true => load.trimmed(lane),
            false => 0,
        };
        for (from, to) in gaps.filter(|(from, to)| from < to && *to > removed) {
            load.record(Event::OrdinalGap { lane, from, to });
        }
        if start > 0 {
            load.record(Event::LogTrimmed { lane, start });
        }
        if let Some(wrong) = begins_late(load, lane, description) {
            load.complain(wrong);
        }
    }
    Some(lanes)
}

/// What is wrong with where a lane begins, if anything is.
fn begins_late(load: &Load, lane: Lane, told: &v1::LaneDescription) -> Option<String> {
    let plan = &load.plan.streams[lane.stream as usize];
    let (start, trimmed) = (told.log_start, load.trimmed(lane));
    // Where nothing was written between two of its jumps, a lane begins at the later one. The history finds records that are gone.
    let jumped = load.was_put_back() && start.is_multiple_of(JUMP);
    if start <= trimmed || jumped {
        return None;
    }
    let Some(limit) = plan.retention_bytes else {
        return Some(format!(
            "lane {lane} begins at {start}, and was trimmed to {trimmed} at most"
        ));
    };
    let (kept, share) = (told.bytes, limit / u64::from(plan.streamlets * plan.lanes));
    // What is appended and not yet acknowledged counts for retention, and may be gone with its owner.
    (kept + u64::from(MAX_BATCH_BYTES) < share).then(|| {
        format!("lane {lane} begins at {start}: retention left {kept} bytes of it, and was to leave {share}")
    })
}
