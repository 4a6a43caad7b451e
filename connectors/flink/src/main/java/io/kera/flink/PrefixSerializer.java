package io.kera.flink;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** Prefixes of transactional ids, as checkpoints keep them. */
final class PrefixSerializer implements SimpleVersionedSerializer<String> {
    private static final int VERSION = 1;

    @Override
    public int getVersion() {
        return VERSION;
    }

    @Override
    public byte[] serialize(String prefix) {
        return prefix.getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public String deserialize(int version, byte[] bytes) throws IOException {
        if (version != VERSION) {
            throw new IOException("a prefix of version " + version
                    + " is in the checkpoint; this connector reads " + VERSION + ": use a newer one");
        }
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
