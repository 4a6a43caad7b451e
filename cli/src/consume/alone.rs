//! Reading without a consumer group: every record, nothing remembered.

use futures::FutureExt as _;
use kera_consumer::Reader;

use super::{ConsumeArgs, Sink, go_on, say_skipped};
use crate::failure::Failure;

pub(super) async fn consume(args: &ConsumeArgs, sink: &mut Sink) -> Result<(), Failure> {
    let mut builder = Reader::builder()
        .bootstrap(&args.connect.bootstrap)
        .connect_options(args.connect.options()?)
        .stream(&args.stream)
        .start(args.from.into())
        .follow(args.follow)
        .memory_limit(args.memory_limit as usize);
    if args.skip_damaged {
        builder = builder.skip_damaged(say_skipped);
    }
    if let (Some(streamlet), Some(lane)) = (args.streamlet, args.lane) {
        builder = builder.lanes([(streamlet, lane)]);
    }
    if let Some(rack) = &args.rack {
        builder = builder.rack(rack);
    }
    let mut reader = builder.open().await?;
    while !sink.is_full() {
        let next = match reader.next_batch().now_or_never() {
            Some(next) => next,
            None => {
                // The reader sees records that were already read before the command waits for more.
                sink.flush()?;
                reader.next_batch().await
            }
        };
        let batch = match next {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                go_on(&args.stream, &error)?;
                continue;
            }
        };
        sink.write(&batch)?;
        if args.follow {
            // Whoever reads along is not to wait for a full buffer.
            sink.flush()?;
        }
    }
    Ok(())
}
