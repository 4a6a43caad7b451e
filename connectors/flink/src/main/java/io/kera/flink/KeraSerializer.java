package io.kera.flink;

import io.kera.client.KeraRecord;
import java.io.Serializable;
import java.util.List;
import org.apache.flink.api.common.serialization.SerializationSchema;

/** Makes records out of a job's values. */
public interface KeraSerializer<T> extends Serializable {
    /** Called once, before the first value. */
    default void open(SerializationSchema.InitializationContext context) throws Exception {}

    /** The key, which chooses the lane; null: none. */
    byte[] key(T value);

    /** The value; null: none. */
    byte[] value(T value);

    /**
     * The record's time, milliseconds since 1970.
     *
     * @param timestamp that of Flink's record; null if it has none
     */
    default long timestamp(T value, Long timestamp) {
        return timestamp == null ? System.currentTimeMillis() : timestamp;
    }

    /** The record's headers, in order. */
    default List<KeraRecord.Header> headers(T value) {
        return List.of();
    }

    /** Values by a schema of Flink, without keys. */
    static <T> KeraSerializer<T> values(SerializationSchema<T> schema) {
        return new Schemas<>(null, schema);
    }

    /** Keys and values by schemas of Flink. */
    static <T> KeraSerializer<T> keyed(SerializationSchema<T> key, SerializationSchema<T> value) {
        return new Schemas<>(key, value);
    }

    /** See {@link #values} and {@link #keyed}. */
    final class Schemas<T> implements KeraSerializer<T> {
        private static final long serialVersionUID = 1L;
        private final SerializationSchema<T> keys;
        private final SerializationSchema<T> values;

        private Schemas(SerializationSchema<T> keys, SerializationSchema<T> values) {
            this.keys = keys;
            this.values = values;
        }

        @Override
        public void open(SerializationSchema.InitializationContext context) throws Exception {
            if (keys != null) {
                keys.open(context);
            }
            values.open(context);
        }

        @Override
        public byte[] key(T value) {
            return keys == null ? null : keys.serialize(value);
        }

        @Override
        public byte[] value(T value) {
            return values.serialize(value);
        }
    }
}
