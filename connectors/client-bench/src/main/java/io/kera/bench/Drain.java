package io.kera.bench;

import com.sun.management.OperatingSystemMXBean;
import io.kera.client.ConsumedBatch;
import io.kera.client.Consumer;
import io.kera.client.ConsumerOptions;
import io.kera.client.KeraRecord;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One member of a group in this process: warms up, then prints the nanoseconds of this process's CPU for each record. */
final class Drain {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    private Drain() {}

    /** A consumer that is measured. */
    private interface Taker extends AutoCloseable {
        /** Takes what comes next, and looks at each value; how many records it was. */
        int take() throws Exception;
    }

    public static void main(String[] words) throws Exception {
        int warmUp = Integer.parseInt(words[4]);
        int records = Integer.parseInt(words[5]);
        try (Taker taker = words[0].equals("kera") ? kera(words[2], words[3]) : kafka(words[2], words[3])) {
            take(taker, warmUp);
            OperatingSystemMXBean system = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
            long began = System.nanoTime();
            long before = system.getProcessCpuTime();
            int count = take(taker, records);
            long cpu = system.getProcessCpuTime() - before;
            long wall = System.nanoTime() - began;
            System.out.println(cpu / (double) count + " " + count * 1e9 / wall);
        }
    }

    /** At least so many records. */
    private static int take(Taker taker, int records) throws Exception {
        int count = 0;
        while (count < records) {
            int more = taker.take();
            if (more == 0) {
                throw new IllegalStateException("only " + count + " records came of " + records);
            }
            count += more;
        }
        return count;
    }

    private static String group(String of) {
        return of + "-" + ProcessHandle.current().pid();
    }

    private static void look(byte[] value) {
        if (value.length == 0) {
            throw new IllegalStateException("a record has no value");
        }
    }

    private static Taker kera(String broker, String stream) throws Exception {
        Consumer consumer = new Consumer(stream, group("kera"), ConsumerOptions.to(broker));
        return new Taker() {
            @Override
            public int take() throws Exception {
                ConsumedBatch batch = consumer.next(PATIENCE);
                if (batch == null) {
                    return 0;
                }
                for (KeraRecord record : batch.records()) {
                    look(record.value());
                }
                return batch.records().size();
            }

            @Override
            public void close() throws Exception {
                consumer.close();
            }
        };
    }

    private static Taker kafka(String broker, String topic) {
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                Map.of(
                        ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, broker,
                        ConsumerConfig.GROUP_ID_CONFIG, group("kafka"),
                        ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                        // As Kera's.
                        ConsumerConfig.AUTO_COMMIT_INTERVAL_MS_CONFIG, 1000),
                new ByteArrayDeserializer(),
                new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        return new Taker() {
            @Override
            public int take() {
                int count = 0;
                long until = System.nanoTime() + PATIENCE.toNanos();
                // The first polls join the group.
                while (count == 0 && System.nanoTime() < until) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                        look(record.value());
                        count++;
                    }
                }
                return count;
            }

            @Override
            public void close() {
                consumer.close();
            }
        };
    }
}
