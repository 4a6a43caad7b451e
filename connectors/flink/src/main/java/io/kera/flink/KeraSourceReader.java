package io.kera.flink;

import io.kera.client.KeraRecord;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SourceOutput;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.connector.base.source.reader.RecordEmitter;
import org.apache.flink.connector.base.source.reader.SingleThreadMultiplexSourceReaderBase;
import org.apache.flink.connector.base.source.reader.splitreader.SplitReader;
import org.apache.flink.core.io.InputStatus;

/** Emits records, keeps positions in checkpoints, and tells the enumerator what it has read to the end. */
final class KeraSourceReader<T>
        extends SingleThreadMultiplexSourceReaderBase<KeraRecord, T, LaneSplit, KeraSourceReader.Position> {
    /** How far a split has been emitted. */
    static final class Position {
        private final LaneSplit split;
        private long next;

        Position(LaneSplit split) {
            this.split = split;
            this.next = split.position();
        }
    }

    /** Emits a record, and then only moves on. */
    record Emitter<T>(KeraDeserializer<T> deserializer) implements RecordEmitter<KeraRecord, T, Position> {
        @Override
        public void emitRecord(KeraRecord record, SourceOutput<T> output, Position position) throws Exception {
            LaneSplit split = position.split;
            if (KeraSplitReader.isPassed(record)) {
                // Up to here others have the keys.
                position.next = record.ordinal() + 1;
                return;
            }
            deserializer.deserialize(record, split, value -> output.collect(value, record.timestamp()));
            position.next = record.ordinal() + 1;
        }
    }

    /** Whether a reader without splits holds up the watermarks of others. */
    private enum Idleness {
        /** It has splits, had some and waits at a barrier, or does not know yet that it gets none. */
        COUNTS,
        /** It never had a split, or has no range now, and is to be marked idle. */
        TO_BE_IDLE,
        IDLE,
        /** It is idle, and has a split now. */
        TO_COUNT
    }

    /** The lowest one that ends the idleness of a reader's output. */
    private static final Watermark FIRST = new Watermark(Long.MIN_VALUE + 1);

    private final FinishedLedger ledger = new FinishedLedger();
    private final PositionCommitter committer;
    /** Splits of earlier versions get the ids that were looked up for them. */
    private final StreamIds ids;
    private final Order order;
    /** Whether the enumerator is told the positions of checkpoints. */
    private final boolean pins;
    private final ReadMetrics metrics;
    private boolean hadSplits;
    private Idleness idleness = Idleness.COUNTS;
    private String firstSplit;
    /** Null: not used yet. */
    private RangeOutput<T> ranges;

    KeraSourceReader(
            Supplier<SplitReader<KeraRecord, LaneSplit>> readers,
            KeraDeserializer<T> deserializer,
            SourceReaderContext context,
            PositionCommitter committer,
            StreamIds ids,
            Order order,
            boolean pins,
            ReadMetrics metrics) {
        super(readers, new Emitter<>(deserializer), context.getConfiguration(), context);
        this.committer = committer;
        this.ids = ids;
        this.order = order;
        this.pins = pins;
        this.metrics = metrics;
    }

    @Override
    public void start() {
        super.start();
        askForRange();
    }

    /** Where no order is kept a reader asks for its next range when it has none. */
    private void askForRange() {
        if (order == Order.NONE && getNumberOfCurrentlyAssignedSplits() == 0) {
            context.sendSplitRequest();
        }
    }

    @Override
    public InputStatus pollNext(ReaderOutput<T> output) throws Exception {
        if (order == Order.NONE) {
            return pollRanges(output);
        }
        if (idleness == Idleness.TO_BE_IDLE) {
            output.markIdle();
            idleness = Idleness.IDLE;
        } else if (idleness == Idleness.TO_COUNT) {
            // By the split's own output: where that of the reader is marked active, no split's idleness counts any more.
            output.createOutputForSplit(firstSplit).emitWatermark(FIRST);
            idleness = Idleness.COUNTS;
        }
        return super.pollNext(output);
    }

    private InputStatus pollRanges(ReaderOutput<T> output) throws Exception {
        // The base class calls it with what it was given.
        if (output != ranges && (ranges == null || !ranges.isOver(output))) {
            ranges = new RangeOutput<>(output);
        }
        if (idleness == Idleness.TO_BE_IDLE) {
            ranges.idle();
            idleness = Idleness.IDLE;
        } else if (idleness == Idleness.TO_COUNT) {
            // Before the first record of the range, which others may be ahead of.
            ranges.markActive();
            idleness = Idleness.COUNTS;
        }
        return super.pollNext(ranges);
    }

    private void becomes(Idleness next) {
        idleness = next;
        splitFetcherManager.getQueue().notifyAvailable();
    }

    private void had(List<LaneSplit> splits) {
        if (splits.isEmpty() || order != Order.NONE && hadSplits) {
            return;
        }
        hadSplits = true;
        firstSplit = splits.get(0).splitId();
        if (idleness == Idleness.IDLE) {
            becomes(Idleness.TO_COUNT);
        } else if (idleness == Idleness.TO_BE_IDLE) {
            idleness = Idleness.COUNTS;
        }
    }

    /** Whether it holds up no watermark while it has no split. */
    private boolean mayBeIdle() {
        // A lane may go on behind a barrier, in order; ranges have none.
        return order == Order.NONE ? getNumberOfCurrentlyAssignedSplits() == 0 : !hadSplits;
    }

    @Override
    public void addSplits(List<LaneSplit> splits) {
        had(splits);
        List<LaneSplit> live = new ArrayList<>();
        List<String> finished = new ArrayList<>();
        for (LaneSplit split : splits) {
            if (split.finished()) {
                ledger.finished(split);
                finished.add(split.splitId());
            } else {
                live.add(split);
            }
        }
        // The enumerator may not know of those, or not any more.
        report(finished);
        if (!live.isEmpty()) {
            super.addSplits(live);
        }
    }

    @Override
    protected void onSplitFinished(Map<String, Position> finished) {
        if (order == Order.NONE) {
            askForRange();
            return;
        }
        finished.values().forEach(position -> ledger.finished(position.split.at(position.next)));
        report(List.copyOf(finished.keySet()));
    }

    private void report(List<String> finished) {
        if (!finished.isEmpty()) {
            context.sendSourceEventToCoordinator(new SplitsFinished(finished));
        }
    }

    @Override
    public void handleSourceEvents(SourceEvent event) {
        if (event instanceof FinishRecorded recorded) {
            ledger.acknowledged(recorded.ids());
        } else if (event instanceof WithoutSplits) {
            if (mayBeIdle() && idleness == Idleness.COUNTS) {
                becomes(Idleness.TO_BE_IDLE);
            }
        } else if (event instanceof WaitingRecords waits) {
            metrics.waiting(waits.records());
        } else {
            super.handleSourceEvents(event);
        }
    }

    @Override
    public List<LaneSplit> snapshotState(long checkpoint) {
        List<LaneSplit> splits = new ArrayList<>(super.snapshotState(checkpoint));
        splits.addAll(ledger.splits());
        committer.taken(checkpoint, splits);
        if (pins) {
            context.sendSourceEventToCoordinator(PositionsTaken.of(checkpoint, splits));
        }
        return splits;
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) throws Exception {
        super.notifyCheckpointComplete(checkpoint);
        committer.completed(checkpoint);
    }

    @Override
    public void notifyCheckpointAborted(long checkpoint) throws Exception {
        super.notifyCheckpointAborted(checkpoint);
        committer.aborted(checkpoint);
    }

    @Override
    protected Position initializedState(LaneSplit split) {
        return new Position(split);
    }

    @Override
    protected LaneSplit toSplitType(String id, Position position) {
        return ids.identified(position.split.at(position.next));
    }

    @Override
    public void close() throws Exception {
        committer.close();
        super.close();
    }
}
