package io.kera.flink;

import io.kera.client.TransactionHandle;
import java.io.IOException;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** Handles of prepared transactions, as checkpoints keep them. */
final class TransactionHandleSerializer implements SimpleVersionedSerializer<TransactionHandle> {
    private static final int VERSION = 1;

    @Override
    public int getVersion() {
        return VERSION;
    }

    @Override
    public byte[] serialize(TransactionHandle handle) {
        return handle.encoded();
    }

    @Override
    public TransactionHandle deserialize(int version, byte[] bytes) throws IOException {
        if (version != VERSION) {
            throw new IOException("a prepared transaction of version " + version
                    + " is in the checkpoint; this connector reads " + VERSION + ": use a newer one");
        }
        return TransactionHandle.decoded(bytes);
    }
}
