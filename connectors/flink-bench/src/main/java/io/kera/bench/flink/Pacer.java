package io.kera.bench.flink;

import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends records at a rate. Each has the time when it was due, so that a producer that is late makes no record quicker. */
final class Pacer {
    private static final int VALUE = 100;
    private static final int BATCH = 128 << 10;
    private static final long LINGER_MILLIS = 1;

    private Pacer() {}

    /** Takes a value. */
    private interface Sender {
        void send(byte[] value) throws Exception;
    }

    static long due(byte[] value) {
        return ByteBuffer.wrap(value).getLong();
    }

    /** Begins to send, in a thread of its own. */
    static void start(boolean isKera, String address, String stream, long rate, Meter meter) throws Exception {
        Sender sender = isKera ? kera(address, stream) : kafka(address, stream);
        Thread thread = new Thread(() -> {
            try {
                send(sender, rate, meter.warmUp + meter.records);
            } catch (Exception error) {
                meter.done().completeExceptionally(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void send(Sender sender, long rate, long count) throws Exception {
        long begin = System.nanoTime();
        for (long number = 0; number < count; number++) {
            long due = begin + number * 1_000_000_000L / rate;
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            sender.send(ByteBuffer.allocate(VALUE).putLong(due).array());
        }
    }

    private static Sender kera(String address, String stream) throws Exception {
        Producer producer = new Producer(
                stream, ProducerOptions.to(address).withBatchSize(BATCH).withLinger(Duration.ofMillis(LINGER_MILLIS)));
        return value -> producer.append(null, value);
    }

    private static Sender kafka(String address, String topic) {
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                Map.of(
                        ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, address,
                        ProducerConfig.BATCH_SIZE_CONFIG, BATCH,
                        ProducerConfig.LINGER_MS_CONFIG, LINGER_MILLIS,
                        ProducerConfig.ACKS_CONFIG, "all"),
                new ByteArraySerializer(),
                new ByteArraySerializer());
        return value -> producer.send(new ProducerRecord<>(topic, value));
    }
}
