//! What a query reads: decided when it is planned, lane by lane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use kera_protocol::ids::StreamId;
use kera_protocol::v1::{Cursor, LaneCursor};
use kera_rpc::{Client, RpcError, StreamMeta};

use crate::builder::Settings;
use crate::error::KeraError;
use crate::filter::{Condition, Known};
use crate::layout::Selection;
use crate::place::Place;
use crate::read;
use crate::table::KeraTable;

/// Record batches that a partition has ready before they are asked for.
const READY: usize = 2;

/// What all partitions of a query share.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) settings: Arc<Settings>,
    pub(crate) client: Client,
    pub(crate) stream: StreamId,
    pub(crate) selection: Selection,
    pub(crate) condition: Condition,
    /// The lanes when the query was planned; others are new.
    pub(crate) lanes: BTreeSet<(u32, u32)>,
}

impl Scan {
    pub(crate) fn rpc(&self, error: RpcError) -> KeraError {
        let stream = self.settings.stream.to_string();
        KeraError::Rpc {
            stream,
            error: Box::new(error),
        }
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.settings.to.is_some()
    }

    /// What is read of a lane that was added after the query had begun: all of it that the condition takes.
    pub(crate) fn new_lane(&self, lane: &LaneCursor) -> Option<LaneRange> {
        let settings = Settings {
            from: Place::Earliest,
            to: None,
            ..Settings::clone(&self.settings)
        };
        let bounds = Bounds {
            begin: ByLane::new(),
            not_before: None,
            end: None,
        };
        bounds.range(lane, &settings, &self.condition)
    }
}

/// What is read of a lane.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaneRange {
    pub(crate) streamlet: u32,
    pub(crate) lane: u32,
    /// Where reading begins.
    pub(crate) start: Cursor,
    /// No record below is delivered,
    pub(crate) first: u64,
    /// nor one before the first at or after this time.
    pub(crate) from_time: Option<i64>,
    /// `None`: for ever.
    pub(crate) end: Option<End>,
}

/// Where a lane ends for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The first ordinal that is not read.
    pub(crate) ordinal: u64,
    /// Nor is the first record from this ordinal on at or after this time, and what follows it.
    pub(crate) time: Option<(u64, i64)>,
}

type ByLane = BTreeMap<(u32, u32), LaneCursor>;

/// Where reading begins and ends, as brokers found it.
struct Bounds {
    begin: ByLane,
    /// The first records of the times that are asked for: where reading begins, by a condition, and where it ends.
    not_before: Option<ByLane>,
    end: Option<ByLane>,
}

impl Bounds {
    async fn find(
        client: &Client,
        meta: &StreamMeta,
        settings: &Settings,
        condition: &Condition,
    ) -> Result<Self, RpcError> {
        let find = async |place: Place| {
            let found = client.find_ordinals(meta, place.at()).await?;
            let each = found
                .into_iter()
                .map(|lane| ((lane.streamlet, lane.lane), lane));
            Ok::<ByLane, RpcError>(each.collect())
        };
        let begin = find(settings.from).await?;
        let end = match settings.to {
            Some(place @ Place::Timestamp(_)) => Some(find(place).await?),
            _ => None,
        };
        let not_before = match condition.not_before() {
            0 => None,
            time => Some(find(Place::Timestamp(time)).await?),
        };
        Ok(Self {
            begin,
            not_before,
            end,
        })
    }

    /// What is read of a lane; `None` if that is nothing.
    fn range(
        &self,
        lane: &LaneCursor,
        settings: &Settings,
        condition: &Condition,
    ) -> Option<LaneRange> {
        let key = (lane.streamlet, lane.lane);
        let known = Known {
            streamlet: lane.streamlet,
            lane: lane.lane,
            record: None,
        };
        if condition.holds(known) == Some(false) {
            return None;
        }
        let wanted = condition.ordinals(lane.streamlet, lane.lane);
        let ordinal = |found: Option<&LaneCursor>| {
            let cursor = found.and_then(|found| found.cursor);
            cursor.map_or(0, |cursor| cursor.ordinal)
        };
        let mut start = lane.cursor.unwrap_or_default();
        let mut from_time = match settings.from {
            Place::Timestamp(time) => Some(millis(time)),
            _ => None,
        };
        let end = settings.to.map(|to| {
            let head = lane.head_ordinal;
            let (ordinal, time) = match to {
                Place::Latest => (head, None),
                Place::Earliest => (lane.log_start.min(head), None),
                Place::Ordinal(end) => (end.min(head), None),
                Place::Timestamp(time) => {
                    let at = ordinal(self.end.as_ref().and_then(|end| end.get(&key)));
                    (head, Some((at, millis(time))))
                }
            };
            End { ordinal, time }
        });
        let end = match (end, wanted.end) {
            (None, u64::MAX) => None,
            (None, ordinal) => Some(End {
                ordinal,
                time: None,
            }),
            (Some(end), ordinal) => Some(End {
                ordinal: end.ordinal.min(ordinal),
                ..end
            }),
        };
        let mut first = start.ordinal.max(wanted.start);
        if let Place::Ordinal(from) = settings.from {
            first = first.max(from);
        }
        // The place of a time is the batch that has its first record. Where a later batch is the first that is wanted, that record is passed.
        let late = self.not_before.as_ref().map(|late| late.get(&key));
        let late = ordinal(late.flatten());
        if late > start.ordinal {
            start = at(late);
            from_time = None;
        }
        if wanted.start > start.ordinal && from_time.is_none() {
            start = at(wanted.start);
        }
        // The first record of the end's time has to be seen.
        if let Some((place, _)) = end.and_then(|end| end.time)
            && place < start.ordinal
        {
            start = at(place);
        }
        if end.is_some_and(|end| end.ordinal <= start.ordinal.max(wanted.start)) {
            return None;
        }
        Some(LaneRange {
            streamlet: lane.streamlet,
            lane: lane.lane,
            start,
            first,
            from_time,
            end,
        })
    }
}

/// The place of an ordinal, wherever it is stored.
fn at(ordinal: u64) -> Cursor {
    Cursor {
        ordinal,
        ..Cursor::default()
    }
}

fn millis(time: u64) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

/// The plan of a query.
pub(crate) async fn plan(
    table: &KeraTable,
    projection: Option<&Vec<usize>>,
    condition: Condition,
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let (settings, client) = (&table.settings, &table.client);
    let refused = |error| KeraError::Rpc {
        stream: settings.stream.to_string(),
        error: Box::new(error),
    };
    let selection = table.layout.select(projection);
    let schema = selection.schema.clone();
    let meta = client.refresh(&settings.stream).await.map_err(refused)?;
    let bounds = Bounds::find(client, &meta, settings, &condition).await;
    let bounds = bounds.map_err(refused)?;
    let ranges = bounds
        .begin
        .values()
        .filter_map(|lane| bounds.range(lane, settings, &condition));
    let ranges: Vec<LaneRange> = ranges.collect();
    let scan = Arc::new(Scan {
        settings: settings.clone(),
        client: client.clone(),
        stream: meta.id,
        selection,
        condition,
        lanes: bounds.begin.keys().copied().collect(),
    });
    let partition = |work| -> Arc<dyn PartitionStream> {
        Arc::new(Partition {
            schema: schema.clone(),
            scan: scan.clone(),
            work,
        })
    };
    let mut partitions: Vec<_> = shares(ranges, settings.partitions)
        .into_iter()
        .map(|lanes| partition(Work::Lanes(lanes)))
        .collect();
    if !scan.is_bounded() {
        partitions.push(partition(Work::NewLanes));
    }
    if partitions.is_empty() {
        return Ok(Arc::new(EmptyExec::new(schema)));
    }
    let infinite = !scan.is_bounded();
    let plan = StreamingTableExec::try_new(schema, partitions, None, [], infinite, limit)?;
    Ok(Arc::new(plan))
}

/// Each lane by itself, or so many parts.
fn shares(lanes: Vec<LaneRange>, most: usize) -> Vec<Vec<LaneRange>> {
    let count = lanes.len().min(most);
    let mut shares = vec![Vec::new(); count];
    for (index, lane) in lanes.into_iter().enumerate() {
        shares[index % count].push(lane);
    }
    shares
}

/// What a partition reads.
#[derive(Debug)]
enum Work {
    Lanes(Vec<LaneRange>),
    /// Lanes that are added while the query runs.
    NewLanes,
}

#[derive(Debug)]
struct Partition {
    schema: SchemaRef,
    scan: Arc<Scan>,
    work: Work,
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStreamBuilder::new(self.schema.clone(), READY);
        let (scan, out) = (self.scan.clone(), builder.tx());
        let rows = context.session_config().batch_size();
        match &self.work {
            Work::Lanes(lanes) => {
                let lanes = lanes.clone();
                builder.spawn(async move { Ok(read::lanes(scan, lanes, rows, out).await?) });
            }
            Work::NewLanes => {
                builder.spawn(async move { Ok(read::new_lanes(scan, rows, out).await?) });
            }
        }
        builder.build()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{Expr, col, lit};
    use datafusion::scalar::ScalarValue;

    use super::*;
    use crate::layout::Layout;

    /// A lane whose records 10 to 99 are stored, from a place on.
    fn lane(lane: u32, from: u64) -> LaneCursor {
        LaneCursor {
            streamlet: 0,
            lane,
            cursor: Some(at(from)),
            head_ordinal: 100,
            log_start: 10,
        }
    }

    fn by_lane(lanes: &[LaneCursor]) -> ByLane {
        lanes.iter().map(|one| ((0, one.lane), *one)).collect()
    }

    /// What is read of lane 1, and where times were found to begin there by a condition and by the end.
    fn range(
        (from, to): (&str, Option<&str>),
        found: u64,
        (not_before, end): (Option<u64>, Option<u64>),
        expression: Option<Expr>,
    ) -> Option<LaneRange> {
        let layout = Layout::new(None, "").unwrap();
        let all = expression.map(|one| Condition::of(&one, &layout).unwrap());
        let condition = Condition::And(all.into_iter().collect());
        let mut settings = KeraTable::builder("s").settings;
        settings.from = from.parse().unwrap();
        settings.to = to.map(|to| to.parse().unwrap());
        let at_lane = |place| by_lane(&[lane(1, place)]);
        let bounds = Bounds {
            begin: at_lane(found),
            not_before: not_before.map(at_lane),
            end: end.map(at_lane),
        };
        bounds.range(&lane(1, found), &settings, &condition)
    }

    /// Where fetching begins, the first ordinal that is delivered, and where it ends.
    fn bounds(range: Option<LaneRange>) -> Option<(u64, u64, Option<u64>)> {
        range.map(|one| (one.start.ordinal, one.first, one.end.map(|end| end.ordinal)))
    }

    const ALL: (&str, Option<&str>) = ("earliest", Some("latest"));
    const NO_TIMES: (Option<u64>, Option<u64>) = (None, None);

    #[test]
    fn ordinals_that_are_asked_for_are_all_that_is_fetched() {
        let of = |expression: Option<Expr>| bounds(range(ALL, 10, NO_TIMES, expression));
        assert_eq!(of(None), Some((10, 10, Some(100))));
        let some = col("ordinal").between(lit(20_u64), lit(29_u64));
        assert_eq!(of(Some(some.clone())), Some((20, 20, Some(30))));
        assert_eq!(
            of(Some(col("ordinal").lt(lit(500_u64)))),
            Some((10, 10, Some(100)))
        );
        // Nothing is left of it, or it is of other lanes.
        assert_eq!(of(Some(col("ordinal").gt_eq(lit(100_u64)))), None);
        assert_eq!(of(Some(col("ordinal").lt(lit(10_u64)))), None);
        assert_eq!(of(Some(col("lane").eq(lit(2_u32)))), None);
        assert_eq!(
            of(Some(col("lane").eq(lit(1_u32)))),
            Some((10, 10, Some(100)))
        );

        let unbounded = ("earliest", None);
        let of = |expression| bounds(range(unbounded, 10, NO_TIMES, expression));
        assert_eq!(of(None), Some((10, 10, None)));
        assert_eq!(of(Some(some)), Some((20, 20, Some(30))), "it ends then");
    }

    #[test]
    fn places_bound_what_is_fetched() {
        let of = |places, found| bounds(range(places, found, NO_TIMES, None));
        assert_eq!(
            of(("ordinal:40", Some("latest")), 40),
            Some((40, 40, Some(100)))
        );
        // A place below the first record is moved to it.
        assert_eq!(
            of(("ordinal:5", Some("latest")), 10),
            Some((10, 10, Some(100)))
        );
        assert_eq!(
            of(("earliest", Some("ordinal:30")), 10),
            Some((10, 10, Some(30)))
        );
        assert_eq!(
            of(("earliest", Some("ordinal:300")), 10),
            Some((10, 10, Some(100)))
        );
        assert_eq!(of(("ordinal:40", Some("ordinal:40")), 40), None);
        assert_eq!(of(("earliest", Some("earliest")), 10), None);
        assert_eq!(of(("latest", Some("latest")), 100), None);
    }

    #[test]
    fn times_that_are_asked_for_move_where_fetching_begins() {
        let time = ScalarValue::TimestampMillisecond(Some(5_000), Some("UTC".into()));
        let late = || Some(col("timestamp").gt_eq(lit(time.clone())));
        // Its first record is in the batch at 60.
        let found = range(ALL, 10, (Some(60), None), late());
        assert_eq!(bounds(found), Some((60, 10, Some(100))));
        // Not back to where the query does not begin.
        let found = range(("ordinal:80", Some("latest")), 80, (Some(60), None), late());
        assert_eq!(bounds(found), Some((80, 80, Some(100))));
        // A lane without such a record has nothing.
        assert_eq!(range(ALL, 10, (Some(100), None), late()), None);

        // From a time on: the first record at or after it is looked for, in the batch at 40.
        let from = ("1970-01-01T00:00:04Z", Some("latest"));
        let found = range(from, 40, NO_TIMES, None).unwrap();
        assert_eq!((found.start.ordinal, found.from_time), (40, Some(4_000)));
        // What lies behind that batch has passed it.
        let found = range(from, 40, (Some(60), None), late()).unwrap();
        assert_eq!((found.start.ordinal, found.from_time), (60, None));

        // Up to a time: the first record at or after it is in the batch at 70, and has to be seen.
        let to = ("earliest", Some("1970-01-01T00:00:07Z"));
        let found = range(to, 10, (None, Some(70)), None).unwrap();
        let end = found.end.unwrap();
        assert_eq!((end.ordinal, end.time), (100, Some((70, 7_000))));
        let to = ("ordinal:80", Some("1970-01-01T00:00:07Z"));
        let found = range(to, 80, (None, Some(70)), None);
        assert_eq!(bounds(found), Some((70, 80, Some(100))));
    }

    #[test]
    fn lanes_are_shared_evenly_and_each_is_in_one_share() {
        let lanes: Vec<LaneRange> = (0..7)
            .map(|number| LaneRange {
                streamlet: 0,
                lane: number,
                start: at(0),
                first: 0,
                from_time: None,
                end: None,
            })
            .collect();
        let numbers = |most| -> Vec<Vec<u32>> {
            let shares = shares(lanes.clone(), most).into_iter();
            shares
                .map(|share| share.iter().map(|one| one.lane).collect())
                .collect()
        };
        assert_eq!(numbers(3), [vec![0, 3, 6], vec![1, 4], vec![2, 5]]);
        assert_eq!(numbers(64).len(), 7);
        assert!(shares(Vec::new(), 3).is_empty());
    }
}
