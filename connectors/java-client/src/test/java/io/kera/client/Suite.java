package io.kera.client;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/** What the client is tested with: the test vectors, and a broker with a stream "s" of one lane and 20 records "0" to "19", and one for each codec. */
public final class Suite {
    private Suite() {}

    /** The file of vectors and the broker's address. */
    public static void main(String[] words) throws Exception {
        vectors(Path.of(words[0]));
        broker(words[1]);
        System.out.println("passed");
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void vectors(Path file) throws Exception {
        Map<String, byte[]> vectors = new HashMap<>();
        for (String line : Files.readAllLines(file)) {
            if (!line.isEmpty() && !line.startsWith("#")) {
                String[] parts = line.split(" = ");
                vectors.put(parts[0], HexFormat.of().parseHex(parts[1]));
            }
        }
        for (String name : List.of("batch", "batch-gzip", "batch-snappy", "batch-lz4", "batch-zstd")) {
            List<KeraRecord> records = new ArrayList<>();
            Batches.read(ByteBuffer.wrap(vectors.get(name)), records::add);
            check(records.size() == 3, name);
            KeraRecord first = records.get(0);
            check(new String(first.key()).equals("21") && new String(first.value()).equals("one"), name);
            check(first.headers().get(0).key().equals("h") && first.timestamp() == 1_700_000_000_000L, name);
            check(records.get(1).key() == null && records.get(2).value() == null, name);
            check(records.get(2).ordinal() == 2 && records.get(2).timestamp() == 1_699_999_999_999L, name);
        }
        List<KeraRecord> stamped = new ArrayList<>();
        Batches.read(ByteBuffer.wrap(vectors.get("batch-append-time")), stamped::add);
        check(stamped.get(1).timestamp() == 1_700_000_000_999L, "the broker's time");
        byte[] damaged = vectors.get("batch").clone();
        damaged[70] ^= 1;
        try {
            Batches.read(ByteBuffer.wrap(damaged), stamped::add);
            check(false, "a damaged batch was read");
        } catch (java.io.IOException error) {
            check(error.getMessage().contains("checksum"), error.getMessage());
        }
        byte[] header = new Wire.Writer().number(1, 1).number(2, 5000).done();
        byte[] request = new Wire.Writer().text(1, "orders").done();
        byte[] call = Connection.frame(Connection.CALL, 8, header, request);
        check(java.util.Arrays.equals(call, vectors.get("call")), "call");
    }

    private static void broker(String address) throws Exception {
        try (Admin admin = new Admin(address, 10_000)) {
            check(admin.createStream("made", 2, 3).streamlets().size() == 2, "streamlets");
            check(admin.bounds("made").size() == 6, "lanes");
            check(admin.streams().size() == 6, "streams");
            admin.deleteStream("made");
            try {
                admin.stream("made");
                check(false, "a deleted stream is there");
            } catch (KeraException error) {
                check(error.getMessage().contains("made"), error.getMessage());
            }
            List<String> compressed = numbers(0, 20).stream().map(n -> "long".repeat(50) + n).toList();
            for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
                check(read(admin.stream(codec), 0, 20, 1 << 20).equals(compressed), codec);
            }
            StreamInfo stream = admin.stream("s");
            Admin.LaneBounds lane = admin.bounds("s").get(0);
            check(lane.start() == 0 && lane.head() == 20, lane.toString());
            check(read(stream, 0, 20, 1 << 20).equals(numbers(0, 20)), "all");
            check(read(stream, 3, 17, 1).equals(numbers(3, 17)), "records outside of the range are dropped");
            check(read(stream, 0, 0, 1).isEmpty(), "an empty range ends at once");
            try (LaneReader reader = new LaneReader(stream, 0, 0, 18, LaneReader.UNBOUNDED, 10_000)) {
                check(reader.read(1 << 20, 1000).size() == 2 && reader.position() == 20, "the rest");
                check(reader.read(1 << 20, 50).isEmpty() && !reader.finished(), "no end");
            }
        }
    }

    private static List<String> numbers(int from, int to) {
        return java.util.stream.IntStream.range(from, to).mapToObj(Integer::toString).toList();
    }

    private static List<String> read(StreamInfo stream, long start, long end, int maxBytes) throws Exception {
        List<String> values = new ArrayList<>();
        try (LaneReader reader = new LaneReader(stream, 0, 0, start, end, 10_000)) {
            while (!reader.finished()) {
                reader.read(maxBytes, 1000).forEach(record -> values.add(new String(record.value())));
            }
        }
        return values;
    }
}
