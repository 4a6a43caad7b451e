//! Reading without a consumer group: every record, nothing remembered.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kera_rpc::{Client, ClientOptions};

use super::{ConsumeArgs, Sink};
use crate::failure::Failure;
use crate::reader::{LaneReader, find};

/// One long poll.
const POLL: Duration = Duration::from_secs(5);
/// How long a broker that went away is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// With --follow people may restart their broker at leisure.
const PATIENCE_FOLLOWING: Duration = Duration::from_secs(3600);

pub(super) async fn consume(args: &ConsumeArgs, sink: &mut Sink) -> Result<(), Failure> {
    // The first contact says clearly when nobody is there.
    args.connect.control().await?;
    let client = Client::new(&args.connect.bootstrap, ClientOptions::default())?;
    let stream = client.stream(&args.stream).await?;
    let mut places = find(&client, &args.stream, args.from).await?;
    if let (Some(streamlet), Some(lane)) = (args.streamlet, args.lane) {
        places.retain(|place| (place.streamlet, place.lane) == (streamlet, lane));
        if places.is_empty() {
            return Err(Failure::message(format!(
                "stream {} has no lane {streamlet}/{lane}; see `kera stream describe {}`",
                args.stream, args.stream
            )));
        }
    }
    let patience = if args.follow {
        PATIENCE_FOLLOWING
    } else {
        PATIENCE
    };
    let readers: Vec<(LaneReader, u64)> = places
        .iter()
        .map(|place| {
            let end = if args.follow {
                u64::MAX
            } else {
                place.head_ordinal
            };
            (
                LaneReader::new(client.clone(), stream.clone(), place, patience),
                end,
            )
        })
        .collect();
    if args.follow {
        follow(readers, sink).await
    } else {
        // One lane after the other: the output is the same each time.
        for (mut reader, end) in readers {
            while reader.ordinal() < end && !sink.is_full() {
                let before = reader.ordinal();
                let bytes = reader.read(POLL).await?;
                write(&mut reader, end, &bytes, sink)?;
                if reader.ordinal() == before {
                    // Below the head, yet nothing to read: ordinals that were given up after a loss.
                    break;
                }
            }
        }
        Ok(())
    }
}

/// All lanes at once, for ever.
async fn follow(readers: Vec<(LaneReader, u64)>, sink: &mut Sink) -> Result<(), Failure> {
    let poll = |mut reader: LaneReader, end: u64| async move {
        let bytes = reader.read(POLL).await;
        (reader, end, bytes)
    };
    let mut polls: FuturesUnordered<_> = readers
        .into_iter()
        .map(|(reader, end)| poll(reader, end))
        .collect();
    while let Some((mut reader, end, bytes)) = polls.next().await {
        write(&mut reader, end, &bytes?, sink)?;
        // Whoever reads along is not to wait for a full buffer.
        sink.out.flush()?;
        if sink.is_full() {
            break;
        }
        polls.push(poll(reader, end));
    }
    Ok(())
}

fn write(
    reader: &mut LaneReader,
    end: u64,
    bytes: &bytes::Bytes,
    sink: &mut Sink,
) -> Result<(), Failure> {
    let place = reader.place();
    reader.visit(bytes, |ordinal, record| {
        if ordinal >= end {
            return Ok(false);
        }
        sink.write(place, ordinal, record)
    })
}
