package io.kera.spark;

import io.kera.client.Admin;
import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.KeraRecord;
import io.kera.client.LaneReader;
import io.kera.client.OwnerConnections;
import io.kera.client.StreamInfo;
import java.io.IOException;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.unsafe.types.UTF8String;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads a range of a lane from its owner, or from a replica in the executor's rack, and goes on where it stood if that becomes another one. */
final class RangeReader implements PartitionReader<InternalRow> {
    private static final Logger LOG = LoggerFactory.getLogger(RangeReader.class);
    private static final int READ_BYTES = 1 << 20;
    private static final int WAIT_MILLIS = 100;

    private final LaneRange range;
    private final KeraColumn[] columns;
    private final boolean failOnDataLoss;
    private final UTF8String stream;
    private final Patience patience;
    private final Admin admin;
    private final OwnerConnections connections;
    private long replicaBytes;
    private LaneReader reader;
    private long position;
    private Iterator<KeraRecord> records = Collections.emptyIterator();
    private InternalRow row;

    RangeReader(BrokerAccess access, LaneRange range, KeraColumn[] columns, boolean failOnDataLoss) throws IOException {
        this.range = range;
        this.columns = columns;
        this.failOnDataLoss = failOnDataLoss;
        stream = UTF8String.fromString(range.lane().stream());
        patience = new Patience("records of " + range + " cannot be read");
        position = range.start();
        admin = access.admin();
        connections = new OwnerConnections(access.connect(), null, access.rackHere());
    }

    @Override
    public boolean next() throws IOException {
        while (!records.hasNext()) {
            if (position >= range.end()) {
                return false;
            }
            records = read().iterator();
        }
        KeraRecord record = records.next();
        Object[] values = new Object[columns.length];
        for (int n = 0; n < values.length; n++) {
            values[n] = columns[n].of(record, range.lane(), stream);
        }
        row = new GenericInternalRow(values);
        return true;
    }

    private List<KeraRecord> read() throws IOException {
        TaskContext task = TaskContext.get();
        if (task != null && task.isInterrupted()) {
            throw new TaskKilledException("killed while it read " + range);
        }
        try {
            if (reader == null) {
                LaneId lane = range.lane();
                StreamInfo stream = admin.stream(lane.stream());
                String id = StreamLook.hex(stream.id());
                if (!id.equals(range.id())) {
                    throw new IllegalStateException(StreamLook.madeAgain(lane.stream(), range.id(), id));
                }
                reader = new LaneReader(stream, lane.streamlet(), lane.lane(), position, range.end(),
                        LaneReader.ALL_GENERATIONS, connections);
            }
            long near = reader.replicaBytes();
            List<KeraRecord> found = reader.read(READ_BYTES, WAIT_MILLIS);
            replicaBytes += reader.replicaBytes() - near;
            if (found.isEmpty() && reader.position() == position && !reader.finished()) {
                // The range ends where records could be read when it was made.
                throw new IOException("the lane has no records at " + position + " any more, or not yet again");
            }
            patience.answered();
            position = reader.finished() ? range.end() : reader.position();
            return found;
        } catch (KeraException error) {
            forget();
            if (error.code() == ErrorCodes.OUT_OF_RANGE) {
                lost(error);
            } else {
                patience.failed(error);
            }
        } catch (IOException error) {
            forget();
            patience.failed(error);
        }
        return List.of();
    }

    /** Records of the range were deleted. */
    private void lost(KeraException error) throws IOException {
        if (failOnDataLoss) {
            throw new IOException("records of " + range + " from " + position + " on were deleted before they were read; set "
                    + KeraOptions.FAIL_ON_DATA_LOSS + " to false to go on without them: " + error.getMessage(), error);
        }
        LaneId lane = range.lane();
        long start = Patience.ask("records of " + range + " from " + position + " on are gone",
                () -> admin.bounds(lane.stream(), lane.streamlet(), lane.lane())).start();
        if (start <= position) {
            // Not deleted: the lane ends before.
            throw new IOException("records of " + range + " cannot be read at " + position + ": " + error.getMessage(), error);
        }
        long stored = Math.min(range.end(), start);
        LOG.warn("records of {} from {} to {} were deleted before they were read", lane, position, stored);
        position = stored;
    }

    private void forget() {
        reader = null;
    }

    /** Bytes of batches that came from replicas in the rack. */
    long replicaBytes() {
        return replicaBytes;
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public void close() {
        forget();
        connections.close();
        admin.close();
    }
}
