package io.kera.flink;

import io.kera.client.KeraRecord;
import java.io.IOException;
import java.io.Serializable;
import java.util.function.Consumer;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.util.Collector;

/** Makes a job's values out of records: none, one or several of each. */
public interface KeraDeserializer<T> extends Serializable, ResultTypeQueryable<T> {
    /** Called once, before the first record. */
    default void open(DeserializationSchema.InitializationContext context) throws Exception {}

    /**
     * Hands over what a record is.
     *
     * @param from the lane it was read from; only stream, streamlet and lane are of use
     */
    void deserialize(KeraRecord record, LaneSplit from, Consumer<T> to) throws IOException;

    /** Records' values by a schema of Flink. A null value is no record. */
    static <T> KeraDeserializer<T> values(DeserializationSchema<T> schema) {
        return new Values<>(schema);
    }

    /** See {@link #values}. */
    final class Values<T> implements KeraDeserializer<T> {
        private static final long serialVersionUID = 1L;
        private final DeserializationSchema<T> schema;

        private Values(DeserializationSchema<T> schema) {
            this.schema = schema;
        }

        @Override
        public void open(DeserializationSchema.InitializationContext context) throws Exception {
            schema.open(context);
        }

        @Override
        public void deserialize(KeraRecord record, LaneSplit from, Consumer<T> to) throws IOException {
            if (record.value() != null) {
                schema.deserialize(record.value(), collector(to));
            }
        }

        @Override
        public TypeInformation<T> getProducedType() {
            return schema.getProducedType();
        }
    }

    /** A consumer as Flink's schemas want it. */
    static <T> Collector<T> collector(Consumer<T> to) {
        return new Collector<>() {
            @Override
            public void collect(T value) {
                if (value != null) {
                    to.accept(value);
                }
            }

            @Override
            public void close() {}
        };
    }
}
