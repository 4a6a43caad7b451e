package io.kera.flink;

import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceOutput;
import org.apache.flink.streaming.api.operators.source.SourceOutputWithWatermarks;

/**
 * The output of a reader of ranges. Flink asks the watermark generator of a split from time to time, and drops it with the
 * split: of a range that was read in between it would never learn how far event time is. So it is asked when the range ends.
 */
final class RangeOutput<T> implements ReaderOutput<T> {
    /** No range has this name. */
    private static final String NO_RANGE = "no range";

    private final ReaderOutput<T> output;

    RangeOutput(ReaderOutput<T> output) {
        this.output = output;
    }

    boolean isOver(ReaderOutput<T> other) {
        return output == other;
    }

    /** The reader has no range: it holds up no watermark. */
    void idle() {
        // Flink counts the outputs of splits and that of the reader one by one, and both have to be idle.
        output.createOutputForSplit(NO_RANGE).markIdle();
        output.releaseOutputForSplit(NO_RANGE);
        output.markIdle();
    }

    @Override
    public void collect(T value) {
        output.collect(value);
    }

    @Override
    public void collect(T value, long timestamp) {
        output.collect(value, timestamp);
    }

    @Override
    public void emitWatermark(Watermark watermark) {
        output.emitWatermark(watermark);
    }

    @Override
    public void markIdle() {
        output.markIdle();
    }

    @Override
    public void markActive() {
        output.markActive();
    }

    @Override
    public SourceOutput<T> createOutputForSplit(String id) {
        return output.createOutputForSplit(id);
    }

    @Override
    public void releaseOutputForSplit(String id) {
        SourceOutput<T> range = output.createOutputForSplit(id);
        if (range instanceof SourceOutputWithWatermarks<T> generating) {
            generating.emitPeriodicWatermark();
            // What was emitted is only noted; this makes it count, together with those of other ranges.
            generating.markActive();
        }
        output.releaseOutputForSplit(id);
    }
}
