package io.kera.spark;

import io.kera.client.KeraRecord;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of records. */
enum KeraColumn {
    KEY(DataTypes.BinaryType, true, (record, from, stream) -> record.key()),
    VALUE(DataTypes.BinaryType, true, (record, from, stream) -> record.value()),
    /** The stream's name. */
    STREAM(DataTypes.StringType, false, (record, from, stream) -> stream),
    /** The streamlet's number. */
    STREAMLET(DataTypes.IntegerType, false, (record, from, stream) -> from.streamlet()),
    /** The lane's number in its streamlet. */
    LANE(DataTypes.IntegerType, false, (record, from, stream) -> from.lane()),
    /** The record's number in its lane. */
    ORDINAL(DataTypes.LongType, false, (record, from, stream) -> record.ordinal()),
    /** The record's time. */
    TIMESTAMP(DataTypes.TimestampType, false, (record, from, stream) -> record.timestamp() * 1000),
    HEADERS(headers(), false, (record, from, stream) -> rows(record.headers()));

    /** What a column has of a record. */
    private interface Part {
        Object of(KeraRecord record, LaneId from, UTF8String stream);
    }

    /** All of them. */
    static final StructType SCHEMA =
            new StructType(Arrays.stream(values()).map(column -> column.field).toArray(StructField[]::new));

    private final StructField field;
    private final Part part;

    KeraColumn(DataType type, boolean nullable, Part part) {
        this.part = part;
        field = DataTypes.createStructField(name().toLowerCase(Locale.ROOT), type, nullable);
    }

    private static DataType headers() {
        StructType header = new StructType().add("key", DataTypes.StringType, false).add("value", DataTypes.BinaryType, true);
        return DataTypes.createArrayType(header, false);
    }

    private static GenericArrayData rows(List<KeraRecord.Header> headers) {
        Object[] rows = new Object[headers.size()];
        for (int n = 0; n < rows.length; n++) {
            KeraRecord.Header header = headers.get(n);
            rows[n] = new GenericInternalRow(new Object[] {UTF8String.fromString(header.key()), header.value()});
        }
        return new GenericArrayData(rows);
    }

    static KeraColumn named(String column) {
        return valueOf(column.toUpperCase(Locale.ROOT));
    }

    /** The column's value, as rows have it inside. */
    Object of(KeraRecord record, LaneId from, UTF8String stream) {
        return part.of(record, from, stream);
    }
}
