package io.kera.samza;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.samza.system.OutgoingMessageEnvelope;
import org.apache.samza.system.SystemProducer;
import org.apache.samza.system.SystemProducerException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Appends what tasks send. {@link #flush} waits until all of it is acknowledged, or tells why something was not. */
final class KeraSystemProducer implements SystemProducer {
    private static final Logger LOG = LoggerFactory.getLogger(KeraSystemProducer.class);

    /** All of this process that are not stopped. */
    private static final Set<KeraSystemProducer> OPEN = ConcurrentHashMap.newKeySet();

    private final SystemSettings settings;
    private final Map<String, StreamSink> sinks = new HashMap<>();
    private boolean stopped;

    KeraSystemProducer(SystemSettings settings) {
        this.settings = settings;
    }

    /**
     * Waits until everything that this process has sent to streams of a system is acknowledged. A commit flushes producers before
     * stores, stores send to the streams of their state when they are flushed, and the newest offsets of these are what the
     * checkpoint says state is restored to.
     *
     * @throws SystemProducerException if a record of them was given up
     */
    static void acknowledge(SystemSettings settings, Set<String> streams) {
        for (KeraSystemProducer producer : OPEN) {
            if (producer.settings.system().equals(settings.system()) && producer.settings.bootstrap().equals(settings.bootstrap())) {
                producer.sinks(streams).forEach(StreamSink::flush);
            }
        }
    }

    private synchronized List<StreamSink> sinks(Set<String> streams) {
        return streams.stream().map(sinks::get).filter(Objects::nonNull).toList();
    }

    @Override
    public void start() {
        // Producers begin with their first record.
        OPEN.add(this);
    }

    @Override
    public void register(String source) {
        // Tasks share producers.
    }

    @Override
    public void send(String source, OutgoingMessageEnvelope envelope) {
        String stream = envelope.getSystemStream().getStream();
        byte[] key = bytes(stream, "key", envelope.getKey());
        byte[] value = bytes(stream, "message", envelope.getMessage());
        sink(stream).append(envelope.getPartitionKey(), key, value);
    }

    private byte[] bytes(String stream, String what, Object found) {
        if (found == null || found instanceof byte[]) {
            return (byte[]) found;
        }
        throw new SystemProducerException("a " + what + " for stream " + stream + " of system " + settings.system() + " is a "
                + found.getClass().getName() + " and not serialized: give the stream a serde, as by streams." + stream + ".samza."
                + (what.equals("key") ? "key" : "msg") + ".serde");
    }

    private synchronized StreamSink sink(String stream) {
        if (stopped) {
            throw new SystemProducerException("the producer of system " + settings.system() + " was stopped");
        }
        return sinks.computeIfAbsent(stream, name -> new StreamSink(settings, name));
    }

    private synchronized Iterable<StreamSink> all() {
        return sinks.values().stream().toList();
    }

    /** @throws SystemProducerException if a record of this task, or of any other one, was given up since the start */
    @Override
    public void flush(String source) {
        for (StreamSink sink : all()) {
            sink.flush();
        }
    }

    @Override
    public void stop() {
        OPEN.remove(this);
        synchronized (this) {
            stopped = true;
        }
        for (StreamSink sink : all()) {
            try {
                sink.close();
            } catch (SystemProducerException error) {
                // No checkpoint has it: it is sent again after the next start.
                LOG.error("at the stop of system {}: {}", settings.system(), error.getMessage(), error);
            }
        }
    }
}
