package kera;

import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Adds up the numbers in a topic, with state that survives the process: from the newest checkpoint in
 * a directory, if it holds one. Prints one JSON line for each number.
 */
public final class Sums {
    /** Counts and adds; both are part of checkpoints. */
    public static final class Adder extends KeyedProcessFunction<Integer, Long, Void> {
        private static final PrintStream ANSWERS =
                new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        private transient ValueState<Long> sum;
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            sum = getRuntimeContext().getState(new ValueStateDescriptor<>("sum", Types.LONG));
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Long number, Context context, Collector<Void> out)
                throws Exception {
            long counted = (count.value() == null ? 0 : count.value()) + 1;
            long added = (sum.value() == null ? 0 : sum.value()) + number;
            count.update(counted);
            sum.update(added);
            ANSWERS.println("{\"count\":" + counted + ",\"sum\":" + added + "}");
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        File checkpoints = new File(arguments[2]);
        System.setOut(System.err);

        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "200ms");
        settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", checkpoints.toURI().toString());
        settings.setString(
                "execution.checkpointing.externalized-checkpoint-retention",
                "RETAIN_ON_CANCELLATION");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "100");
        settings.setString("restart-strategy.fixed-delay.delay", "100ms");
        settings.setString("taskmanager.memory.network.min", "16mb");
        settings.setString("taskmanager.memory.network.max", "16mb");
        settings.setString("rest.port", "0");
        File newest = newest(checkpoints);
        if (newest != null) {
            settings.setString("execution.state-recovery.path", newest.toURI().toString());
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(2, settings);

        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(bootstrap)
                .setTopics(topic)
                .setGroupId("flink-" + topic)
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "numbers")
                .uid("numbers")
                .map(Long::parseLong)
                .returns(Types.LONG)
                .keyBy(number -> 0, Types.INT)
                .process(new Adder())
                .uid("adder");
        environment.execute("sums");
    }

    /** The newest complete checkpoint below a directory: DIR/JOB/chk-N, which has a _metadata. */
    private static File newest(File directory) {
        List<File> complete = new ArrayList<>();
        for (File job : list(directory)) {
            for (File checkpoint : list(job)) {
                if (new File(checkpoint, "_metadata").exists()) {
                    complete.add(checkpoint);
                }
            }
        }
        return complete.stream()
                .max((a, b) -> Long.compare(
                        new File(a, "_metadata").lastModified(),
                        new File(b, "_metadata").lastModified()))
                .orElse(null);
    }

    private static File[] list(File directory) {
        File[] files = directory.listFiles();
        return files == null ? new File[0] : files;
    }

    private Sums() {}
}
