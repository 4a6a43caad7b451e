package io.kera.flink;

import java.util.Objects;
import org.apache.flink.api.connector.source.SourceSplit;

/**
 * What one reader reads of a lane: its records of one generation of the stream's lanes, in order; or a range of its
 * ordinals, where no order is asked for.
 *
 * @param generation of the stream's lanes; {@link #ANY_GENERATION} where keys choose no lanes; {@link #RANGE}
 * @param position the ordinal of the next record
 * @param end the ordinal behind the last record; {@link #UNBOUNDED}: to the end of the generation, or for ever
 * @param finished everything was read; the split is kept only until the enumerator is known to have recorded that
 * @param streamId the stream's id in hexadecimal digits, since a name can be another stream's later; empty: not known
 * @param slices of the lane's keys, bit n for slice n; {@link #ALL_SLICES}: its records, whatever their keys
 */
public record LaneSplit(
        String stream, int streamlet, int lane, int generation, long position, long end, boolean finished, String streamId,
        long slices)
        implements SourceSplit {
    /** No end is known. */
    public static final long UNBOUNDED = -1;
    /** Generations do not matter. */
    public static final int ANY_GENERATION = -1;
    /** It is a range. */
    public static final int RANGE = -2;
    /** The keys are not shared. */
    public static final long ALL_SLICES = -1;

    public LaneSplit {
        Objects.requireNonNull(stream);
        Objects.requireNonNull(streamId);
    }

    LaneSplit(String stream, int streamlet, int lane, int generation, long position, long end, boolean finished) {
        this(stream, streamlet, lane, generation, position, end, finished, "", ALL_SLICES);
    }

    static LaneSplit range(String stream, int streamlet, int lane, long start, long end) {
        return new LaneSplit(stream, streamlet, lane, RANGE, start, end, false);
    }

    boolean isRange() {
        return generation == RANGE;
    }

    /** The split of a lane and generation has one name for life, and so has a range: no other has its end. */
    @Override
    public String splitId() {
        if (isRange()) {
            return stream + ":" + streamlet + "/" + lane + "#" + end;
        }
        String all = stream + ":" + streamlet + "/" + lane + "@" + generation;
        return slices == ALL_SLICES ? all : all + "%" + Long.toHexString(slices);
    }

    LaneSplit at(long ordinal) {
        return new LaneSplit(stream, streamlet, lane, generation, ordinal, end, finished, streamId, slices);
    }

    LaneSplit asFinished() {
        return new LaneSplit(stream, streamlet, lane, generation, position, end, true, streamId, slices);
    }

    /** The same, of the stream with that id. */
    LaneSplit of(String id) {
        return new LaneSplit(stream, streamlet, lane, generation, position, end, finished, id, slices);
    }

    /** The same of some keys. */
    LaneSplit ofSlices(long some) {
        return new LaneSplit(stream, streamlet, lane, generation, position, end, finished, streamId, some);
    }
}
