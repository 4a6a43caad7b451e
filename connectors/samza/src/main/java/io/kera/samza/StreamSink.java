package io.kera.samza;

import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;
import org.apache.samza.system.SystemProducerException;

/** Where a system's tasks append to one stream. After a record was given up nothing succeeds any more, so that no task checkpoints it. */
final class StreamSink {
    private final SystemSettings settings;
    private final String stream;
    private final Object flushing = new Object();
    /** By key; null: not needed yet. */
    private Producer keyed;
    /** To partitions that tasks name; null: not needed yet. */
    private Producer placed;
    private volatile Exception failure;

    StreamSink(SystemSettings settings, String stream) {
        this.settings = settings;
        this.stream = stream;
    }

    /** @param partitionKey which of Samza's partitions it is for; null, or the key: the key's */
    void append(Object partitionKey, byte[] key, byte[] value) {
        check();
        try {
            if (partitionKey == null || isKey(partitionKey, key)) {
                keyed().append(key, value);
            } else {
                Producer producer = placed();
                producer.appendTo(Math.floorMod(partitionKey.hashCode(), producer.partitions()), key, value, List.of(),
                        System.currentTimeMillis());
            }
        } catch (IOException | IllegalArgumentException error) {
            boolean isRecords = error instanceof KeraException answer && answer.code() == ErrorCodes.BATCH_TOO_LARGE;
            throw isRecords ? told(error) : failed(error);
        }
    }

    /**
     * True if a task has given nothing but the key, so that the record belongs where all of Kera's clients put the key. A number
     * of type Integer is a partition, as stores and Samza's own messages give it.
     */
    private static boolean isKey(Object partitionKey, byte[] key) {
        if (key == null || partitionKey instanceof Integer) {
            return false;
        }
        byte[] alike = partitionKey instanceof byte[] bytes ? bytes
                : partitionKey instanceof Long number ? ByteBuffer.allocate(Long.BYTES).putLong(number).array()
                : partitionKey.toString().getBytes(StandardCharsets.UTF_8);
        return Arrays.equals(alike, key);
    }

    private synchronized Producer keyed() throws IOException {
        if (keyed == null) {
            keyed = new Producer(stream, options());
        }
        return keyed;
    }

    private synchronized Producer placed() throws IOException {
        if (placed == null) {
            placed = Producer.placed(stream, options());
        }
        return placed;
    }

    private ProducerOptions options() throws IOException {
        return settings.producerOptions(settings.connect());
    }

    private synchronized List<Producer> producers() {
        return Stream.of(keyed, placed).filter(Objects::nonNull).toList();
    }

    private void check() {
        if (failure != null) {
            throw told(failure);
        }
    }

    private SystemProducerException failed(Exception error) {
        failure = error;
        return told(error);
    }

    private SystemProducerException told(Exception error) {
        return new SystemProducerException("stream " + stream + " of system " + settings.system() + " did not take a record of "
                + settings.job() + ": " + error.getMessage(), error);
    }

    /** Waits until everything appended before is acknowledged. */
    void flush() {
        // A producer tells one caller alone of what was given up before: no other task may take that for a success.
        synchronized (flushing) {
            check();
            try {
                for (Producer producer : producers()) {
                    producer.flush();
                }
            } catch (IOException error) {
                throw failed(error);
            }
            check();
        }
    }

    void close() {
        Exception first = null;
        for (Producer producer : producers()) {
            try {
                producer.close();
            } catch (IOException error) {
                first = error;
            }
        }
        if (first != null) {
            throw failed(first);
        }
    }
}
