package io.kera.flink.table;

import io.kera.client.KeraRecord;
import io.kera.flink.LaneSplit;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.data.GenericMapData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.types.DataType;

/** What a record has beside key and value, as metadata columns. */
enum RowMetadata {
    /** The record's time. */
    TIMESTAMP(DataTypes.TIMESTAMP_LTZ(3).notNull()) {
        @Override
        Object of(KeraRecord record, LaneSplit from) {
            return TimestampData.fromEpochMillis(record.timestamp());
        }
    },
    /** The stream's name. */
    STREAM(DataTypes.STRING().notNull()) {
        @Override
        Object of(KeraRecord record, LaneSplit from) {
            return StringData.fromString(from.stream());
        }
    },
    /** The streamlet's number. */
    STREAMLET(DataTypes.INT().notNull()) {
        @Override
        Object of(KeraRecord record, LaneSplit from) {
            return from.streamlet();
        }
    },
    /** The lane's number in its streamlet. */
    LANE(DataTypes.INT().notNull()) {
        @Override
        Object of(KeraRecord record, LaneSplit from) {
            return from.lane();
        }
    },
    /** The record's number in its lane. */
    ORDINAL(DataTypes.BIGINT().notNull()) {
        @Override
        Object of(KeraRecord record, LaneSplit from) {
            return record.ordinal();
        }
    },
    /** Headers; of two with one key the last. */
    HEADERS(DataTypes.MAP(DataTypes.STRING().notNull(), DataTypes.BYTES()).notNull()) {
        @Override
        Object of(KeraRecord record, LaneSplit from) {
            Map<StringData, byte[]> headers = new HashMap<>();
            record.headers().forEach(header -> headers.put(StringData.fromString(header.key()), header.value()));
            return new GenericMapData(headers);
        }
    };

    private final DataType type;

    RowMetadata(DataType type) {
        this.type = type;
    }

    DataType type() {
        return type;
    }

    String column() {
        return name().toLowerCase(Locale.ROOT);
    }

    static RowMetadata named(String column) {
        return valueOf(column.toUpperCase(Locale.ROOT));
    }

    /** The column's value, as tables have it inside. */
    abstract Object of(KeraRecord record, LaneSplit from);
}
