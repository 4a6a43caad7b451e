package io.kera.bench;

import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** One producer in this process: warms up, then prints the nanoseconds of this process's CPU for each record. */
final class Load {
    private static final int BATCH = 128 << 10;
    private static final long LINGER_MILLIS = 1;
    private static final long MEMORY = 64L << 20;
    private static final int VALUE = 100;
    private static final int KEYS = 10_000;

    /** A producer that is measured. */
    private interface Sender extends AutoCloseable {
        void send(byte[] key, byte[] value) throws Exception;

        /** Returns when all is acknowledged. */
        void flush() throws Exception;
    }

    private Load() {}

    public static void main(String[] words) throws Exception {
        boolean keyed = words[1].equals("keyed");
        int warmUp = Integer.parseInt(words[4]);
        int records = Integer.parseInt(words[5]);
        AtomicLong told = new AtomicLong();
        byte[][] keys = keys(keyed);
        byte[] value = new byte[VALUE];
        try (Sender sender = words[0].equals("kera")
                ? kera(words[2], words[3], keyed, told)
                : kafka(words[2], words[3], keyed, told)) {
            send(sender, keys, value, warmUp);
            com.sun.management.OperatingSystemMXBean system =
                    ManagementFactory.getPlatformMXBean(com.sun.management.OperatingSystemMXBean.class);
            long began = System.nanoTime();
            long before = system.getProcessCpuTime();
            send(sender, keys, value, records);
            long cpu = system.getProcessCpuTime() - before;
            long wall = System.nanoTime() - began;
            if (keyed && told.get() != (long) warmUp + records) {
                throw new IllegalStateException("told of " + told + " records");
            }
            System.out.println(cpu / (double) records + " " + records * 1e9 / wall);
        }
    }

    private static byte[][] keys(boolean keyed) {
        byte[][] keys = new byte[keyed ? KEYS : 1][];
        for (int n = 0; keyed && n < KEYS; n++) {
            keys[n] = String.format("key-%06d", n).getBytes(StandardCharsets.UTF_8);
        }
        return keys;
    }

    private static void send(Sender sender, byte[][] keys, byte[] value, int records) throws Exception {
        for (int n = 0; n < records; n++) {
            sender.send(keys[n % keys.length], value);
        }
        sender.flush();
    }

    private static Sender kera(String broker, String stream, boolean keyed, AtomicLong told) throws Exception {
        Producer producer = new Producer(stream, ProducerOptions.to(broker)
                .withBatchSize(BATCH)
                .withLinger(Duration.ofMillis(LINGER_MILLIS))
                .withMemoryLimit(MEMORY));
        return new Sender() {
            @Override
            public void send(byte[] key, byte[] value) throws Exception {
                if (keyed) {
                    producer.appendTracked(key, value, List.of(), System.currentTimeMillis())
                            .thenAccept(place -> told.incrementAndGet());
                } else {
                    producer.append(key, value);
                }
            }

            @Override
            public void flush() throws Exception {
                producer.flush();
            }

            @Override
            public void close() throws Exception {
                producer.close();
            }
        };
    }

    private static Sender kafka(String broker, String topic, boolean keyed, AtomicLong told) {
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                Map.of(
                        ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, broker,
                        ProducerConfig.BATCH_SIZE_CONFIG, BATCH,
                        ProducerConfig.LINGER_MS_CONFIG, LINGER_MILLIS,
                        ProducerConfig.BUFFER_MEMORY_CONFIG, MEMORY,
                        ProducerConfig.ACKS_CONFIG, "all"),
                new ByteArraySerializer(),
                new ByteArraySerializer());
        return new Sender() {
            @Override
            public void send(byte[] key, byte[] value) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, key, value);
                if (keyed) {
                    producer.send(record, (place, error) -> {
                        if (error == null) {
                            told.incrementAndGet();
                        }
                    });
                } else {
                    producer.send(record);
                }
            }

            @Override
            public void flush() {
                producer.flush();
            }

            @Override
            public void close() {
                producer.close();
            }
        };
    }
}
