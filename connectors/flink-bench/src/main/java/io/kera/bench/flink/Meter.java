package io.kera.bench.flink;

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;

/** What a job costs this process and its broker from one record to another. Operators reach it by being in the process. */
final class Meter {
    static Meter meter;

    private static final long TICK_NANOS = 10_000_000;

    /** CPU time of this process and of the broker, time, and time that all cores were not idle; nanoseconds. */
    private record Look(long own, long broker, long wall, long busy) {}

    final long warmUp;
    final long records;
    /** Of every record after the warm-up, where the job measures them. */
    final long[] latencies;

    private final CompletableFuture<String> done = new CompletableFuture<>();
    private final Path broker;
    private final AtomicLong counted = new AtomicLong();
    private volatile Look begin;

    Meter(long brokerProcess, long warmUp, long records, boolean withLatencies) {
        broker = Path.of("/proc/" + brokerProcess + "/stat");
        this.warmUp = warmUp;
        this.records = records;
        latencies = new long[withLatencies ? Math.toIntExact(records) : 0];
    }

    CompletableFuture<String> done() {
        return done;
    }

    /** So many records more have come, in any subtask. */
    void count(long more) {
        long now = counted.addAndGet(more);
        if (now >= warmUp && now - more < warmUp) {
            begin = look();
        }
        if (now >= warmUp + records && now - more < warmUp + records) {
            end();
        }
    }

    private void end() {
        Look end = look();
        long own = end.own - begin.own;
        long atBroker = end.broker - begin.broker;
        long wall = end.wall - begin.wall;
        double others = Math.max(0, end.busy - begin.busy - own - atBroker)
                / (double) (wall * Runtime.getRuntime().availableProcessors());
        Arrays.sort(latencies);
        done.complete(String.format(
                Locale.ROOT,
                "{\"engine_ns\": %.1f, \"broker_ns\": %.1f, \"records_per_second\": %.0f, \"others_percent\": %.1f%s}",
                own / (double) records,
                atBroker / (double) records,
                records * 1e9 / wall,
                100 * others,
                latencies.length == 0 ? "" : String.format(Locale.ROOT, ", \"p50_ms\": %.3f, \"p99_ms\": %.3f", percentile(50), percentile(99))));
    }

    private double percentile(int of) {
        return latencies[(int) ((latencies.length - 1L) * of / 100)] / 1e6;
    }

    private Look look() {
        try {
            String stat = Files.readString(broker);
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            long ticks = Long.parseLong(fields[11]) + Long.parseLong(fields[12]);
            OperatingSystemMXBean system = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
            return new Look(system.getProcessCpuTime(), ticks * TICK_NANOS, System.nanoTime(), busy() * TICK_NANOS);
        } catch (IOException error) {
            throw new UncheckedIOException("the broker is gone", error);
        }
    }

    private static long busy() throws IOException {
        try (var lines = Files.lines(Path.of("/proc/stat"))) {
            String[] fields = lines.findFirst().orElseThrow().trim().split(" +");
            long busy = 0;
            for (int field = 1; field <= 8; field++) {
                // Without those that wait for nothing, and for a disk.
                busy += field == 4 || field == 5 ? 0 : Long.parseLong(fields[field]);
            }
            return busy;
        }
    }
}
