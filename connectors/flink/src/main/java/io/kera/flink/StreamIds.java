package io.kera.flink;

import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.flink.util.FlinkRuntimeException;

/** The ids of streams, in hexadecimal digits. A name can be used again, an id cannot. */
final class StreamIds {
    private final Map<String, String> byName = new ConcurrentHashMap<>();

    /** By name, as far as they are known. */
    Map<String, String> all() {
        return byName;
    }

    /** The split with its stream's id, if that is known. */
    LaneSplit identified(LaneSplit split) {
        return split.of(byName.getOrDefault(split.stream(), split.streamId()));
    }

    /** @throws FlinkRuntimeException if another stream has the name by now */
    void check(String stream, byte[] id) {
        check(stream, HexFormat.of().formatHex(id));
    }

    /** @throws FlinkRuntimeException if the split is of another stream of the name */
    void check(LaneSplit split) {
        if (!split.streamId().isEmpty()) {
            check(split.stream(), split.streamId());
        }
    }

    private void check(String stream, String now) {
        String before = byName.putIfAbsent(stream, now);
        if (before != null && !before.equals(now)) {
            throw new FlinkRuntimeException("stream " + stream + " was deleted, and another one has its name: its id was " + before
                    + " and is " + now + "; start the job without its state to read the new one");
        }
    }
}
