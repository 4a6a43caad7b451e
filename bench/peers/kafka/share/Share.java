import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a share group that take time for each record; librdkafka has no share groups. It speaks
 * with the harness as its own loads do, and counts as they do: what is done from half a second after
 * the first record on, for so long.
 */
public final class Share {
    private static final long WARM = 500_000_000L;
    private static final long SILENCE = 30_000_000_000L;

    private final String bootstrap;
    private final String topic;
    private final String group;
    private final long lasts;
    private final long work;
    private final String records;
    private final long opened = System.nanoTime();
    private final AtomicLong first = new AtomicLong();
    private final AtomicLong counted = new AtomicLong();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    private Share(String[] arguments) {
        bootstrap = arguments[0];
        topic = arguments[1];
        group = topic + "-" + ProcessHandle.current().pid();
        lasts = Long.parseLong(arguments[3]) * 1_000_000;
        work = Long.parseLong(arguments[4]) * 1_000;
        records = arguments[5];
    }

    /** Bootstrap, topic, consumers, milliseconds, microseconds a record, records of a batch, bytes of a record. */
    public static void main(String[] arguments) throws Exception {
        PrintStream out =
                new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // Nothing that a library prints may get between the answers.
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        in.readLine();
        Share share = new Share(arguments);
        share.startAtTheBeginning();
        out.println("\"ready\"");
        if (!"go".equals(in.readLine())) {
            throw new IllegalStateException("the harness went away");
        }
        List<Thread> consumers = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            Thread consumer = new Thread(share::consume);
            consumer.start();
            consumers.add(consumer);
        }
        for (Thread consumer : consumers) {
            consumer.join();
        }
        if (share.failure.get() != null) {
            share.failure.get().printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        long count = share.counted.get();
        long bytes = count * Long.parseLong(arguments[6]);
        out.printf(
                "{\"done\":{\"records\":%d,\"bytes\":%d,\"seconds\":%s,\"mean_batch_bytes\":null,\"latency\":null}}%n",
                count, bytes, Double.toString(share.lasts / 1e9));
        in.readLine();
        Runtime.getRuntime().halt(0);
    }

    /** A share group starts at the end of a topic unless it is told otherwise. */
    private void startAtTheBeginning() throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(properties)) {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            AlterConfigOp earliest =
                    new AlterConfigOp(
                            new ConfigEntry("share.auto.offset.reset", "earliest"),
                            AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all().get();
        }
    }

    private void consume() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        // About a batch, so that there is something for everybody.
        properties.put("max.poll.records", records);
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(topic));
            while (!isOver()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    work();
                    if (isOver()) {
                        break;
                    }
                }
            }
        } catch (Throwable error) {
            failure.compareAndSet(null, error);
        }
    }

    private void work() {
        first.compareAndSet(0, System.nanoTime());
        long begin = System.nanoTime();
        for (long left = work; left > 0; left = work - (System.nanoTime() - begin)) {
            LockSupport.parkNanos(left);
        }
        long since = System.nanoTime() - first.get();
        if (since >= WARM && since < WARM + lasts) {
            counted.incrementAndGet();
        }
    }

    private boolean isOver() {
        long now = System.nanoTime();
        if (failure.get() != null) {
            return true;
        }
        if (first.get() == 0) {
            if (now - opened > SILENCE) {
                throw new IllegalStateException("no consumer was given a record within 30 s");
            }
            return false;
        }
        return now - first.get() >= WARM + lasts;
    }
}
