package io.kera.bench.flink;

import io.kera.flink.KeraDeserializer;
import io.kera.flink.KeraSource;
import io.kera.flink.Order;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/** One job in this process, with its cluster: what it costs from one record to another, as a line of JSON. */
final class FlinkLoad {
    private static final long CHECKPOINTS_MILLIS = 1000;
    private static final int SLOW_PARALLELISM = 8;
    private static final int SLOW_RECORDS = 20;
    private static final long SLOW_NANOS = 1_000_000;

    private FlinkLoad() {}

    public static void main(String[] words) throws Exception {
        if (words.length != 8) {
            System.err.println("usage: FlinkLoad kera|kafka cpu|slow|latency ADDRESS STREAM BROKER_PID WARM_UP RECORDS RATE");
            System.exit(2);
        }
        boolean isKera = words[0].equals("kera");
        Case which = Case.valueOf(words[1].toUpperCase(java.util.Locale.ROOT));
        String address = words[2];
        String stream = words[3];
        Meter meter = new Meter(
                Long.parseLong(words[4]), Long.parseLong(words[5]), Long.parseLong(words[6]), which == Case.LATENCY);
        Meter.meter = meter;

        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(which == Case.SLOW ? SLOW_PARALLELISM : 1, new Configuration());
        env.enableCheckpointing(CHECKPOINTS_MILLIS);
        env.getConfig().enableObjectReuse();
        Source<byte[], ?, ?> source = isKera
                ? kera(address, stream, which == Case.SLOW ? Order.NONE : Order.LANE, env)
                : kafka(address, stream);
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "source")
                .filter(which.operator())
                .sinkTo(new DiscardingSink<>());
        JobClient job = env.executeAsync();
        if (which == Case.LATENCY) {
            Pacer.start(isKera, address, stream, Long.parseLong(words[7]), meter);
        }
        CompletableFuture<?> failed = job.getJobExecutionResult().thenAccept(result -> {
            throw new IllegalStateException("the job ended before all records had come");
        });
        CompletableFuture.anyOf(meter.done(), failed).get();
        System.out.println(meter.done().get());
        System.out.flush();
        // Nothing of the job is of use any more.
        Runtime.getRuntime().halt(0);
    }

    /** What is measured. */
    private enum Case {
        CPU {
            @Override
            FilterFunction<byte[]> operator() {
                return new Count();
            }
        },
        SLOW {
            @Override
            FilterFunction<byte[]> operator() {
                return new Wait();
            }
        },
        LATENCY {
            @Override
            FilterFunction<byte[]> operator() {
                return new Delay();
            }
        };

        abstract FilterFunction<byte[]> operator();
    }

    /** Counts records by thousands, which is exact where there is one subtask. */
    private static final class Count implements FilterFunction<byte[]> {
        private static final long serialVersionUID = 1L;
        private static final int MANY = 1000;
        private int seen;

        @Override
        public boolean filter(byte[] value) {
            if (++seen == MANY) {
                seen = 0;
                Meter.meter.count(MANY);
            }
            return false;
        }
    }

    /** A step that waits, as for another system. */
    private static final class Wait implements FilterFunction<byte[]> {
        private static final long serialVersionUID = 1L;
        private int seen;

        @Override
        public boolean filter(byte[] value) {
            if (++seen == SLOW_RECORDS) {
                seen = 0;
                long until = System.nanoTime() + SLOW_NANOS;
                for (long left = SLOW_NANOS; left > 0; left = until - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                Meter.meter.count(SLOW_RECORDS);
            }
            return false;
        }
    }

    /** How long each record took since it was due. */
    private static final class Delay implements FilterFunction<byte[]> {
        private static final long serialVersionUID = 1L;
        private long seen;

        @Override
        public boolean filter(byte[] value) {
            Meter meter = Meter.meter;
            long index = seen++ - meter.warmUp;
            if (index >= 0 && index < meter.records) {
                meter.latencies[(int) index] = System.nanoTime() - Pacer.due(value);
            }
            meter.count(1);
            return false;
        }
    }

    private static Source<byte[], ?, ?> kera(String address, String stream, Order order, StreamExecutionEnvironment env) {
        var builder = KeraSource.<byte[]>builder()
                .bootstrap(address)
                .streams(stream)
                .order(order)
                .deserializer(KeraDeserializer.values(new Bytes()));
        if (order == Order.LANE) {
            builder.group(group());
        }
        return builder.build(env.getConfiguration());
    }

    private static Source<byte[], ?, ?> kafka(String address, String topic) {
        return KafkaSource.<byte[]>builder()
                .setBootstrapServers(address)
                .setTopics(topic)
                .setGroupId(group())
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new Bytes())
                .build();
    }

    private static String group() {
        return "flink-" + ProcessHandle.current().pid();
    }

    /** Values as they are. */
    private static final class Bytes extends AbstractDeserializationSchema<byte[]> {
        private static final long serialVersionUID = 1L;

        @Override
        public byte[] deserialize(byte[] value) {
            return value;
        }
    }
}
