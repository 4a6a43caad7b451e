package io.kera.spark;

import io.kera.client.KeraRecord.Header;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Where a row that is written has the parts of a record; below 0: nowhere. */
final class SinkColumns implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final String TAKEN = "; a row that is written has value, and may have key, timestamp and headers, of types that are"
            + " read: name or cast columns by selectExpr, and drop the others";

    private final int key;
    private final boolean textKey;
    private final int value;
    private final boolean textValue;
    private final int timestamp;
    private final int headers;

    /** @throws IllegalArgumentException if rows do not fit records */
    SinkColumns(String stream, StructType schema) {
        int[] places = {-1, -1, -1, -1};
        boolean[] text = new boolean[2];
        StructField[] fields = schema.fields();
        for (int n = 0; n < fields.length; n++) {
            DataType type = fields[n].dataType();
            boolean bytes = type.equals(DataTypes.BinaryType) || isText(type);
            int part = List.of("key", "value", "timestamp", "headers").indexOf(fields[n].name().toLowerCase(Locale.ROOT));
            boolean fits = switch (part) {
                case 0, 1 -> bytes;
                case 2 -> type.equals(DataTypes.TimestampType);
                case 3 -> areHeaders(type);
                default -> throw refused(stream, "column " + fields[n].name() + " is no part of a record");
            };
            if (!fits) {
                throw refused(stream, "column " + fields[n].name() + " is of type " + type.sql());
            }
            if (places[part] >= 0) {
                throw refused(stream, "there are two columns " + fields[n].name());
            }
            places[part] = n;
            if (part < text.length) {
                text[part] = isText(type);
            }
        }
        if (places[1] < 0) {
            throw refused(stream, "there is no column value");
        }
        key = places[0];
        textKey = text[0];
        value = places[1];
        textValue = text[1];
        timestamp = places[2];
        headers = places[3];
    }

    private static IllegalArgumentException refused(String stream, String why) {
        return new IllegalArgumentException("rows cannot be written to stream " + stream + ": " + why + TAKEN);
    }

    private static boolean isText(DataType type) {
        return type.equals(DataTypes.StringType);
    }

    /** Whether it is what is read, whatever may be null. */
    private static boolean areHeaders(DataType type) {
        return type instanceof ArrayType array
                && array.elementType() instanceof StructType header
                && header.fields().length == 2
                && header.fields()[0].name().equalsIgnoreCase("key")
                && isText(header.fields()[0].dataType())
                && header.fields()[1].name().equalsIgnoreCase("value")
                && header.fields()[1].dataType().equals(DataTypes.BinaryType);
    }

    byte[] key(InternalRow row) {
        return bytes(row, key, textKey);
    }

    byte[] value(InternalRow row) {
        return bytes(row, value, textValue);
    }

    private static byte[] bytes(InternalRow row, int at, boolean text) {
        if (at < 0 || row.isNullAt(at)) {
            return null;
        }
        return text ? row.getUTF8String(at).getBytes() : row.getBinary(at);
    }

    /** Milliseconds since 1970; now where the row has none. */
    long timestamp(InternalRow row) {
        return timestamp < 0 || row.isNullAt(timestamp)
                ? System.currentTimeMillis()
                : Math.floorDiv(row.getLong(timestamp), 1000);
    }

    /** @throws IllegalArgumentException if one has no key */
    List<Header> headers(InternalRow row) {
        if (headers < 0 || row.isNullAt(headers)) {
            return List.of();
        }
        ArrayData array = row.getArray(headers);
        List<Header> all = new ArrayList<>(array.numElements());
        for (int n = 0; n < array.numElements(); n++) {
            InternalRow header = array.isNullAt(n) ? null : array.getStruct(n, 2);
            if (header == null || header.isNullAt(0)) {
                throw new IllegalArgumentException("header " + n + " of a row has no key");
            }
            all.add(new Header(new String(header.getUTF8String(0).getBytes(), StandardCharsets.UTF_8),
                    header.isNullAt(1) ? null : header.getBinary(1)));
        }
        return all;
    }
}
