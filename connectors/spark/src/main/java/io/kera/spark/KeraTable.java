package io.kera.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Streams as a table of records. */
final class KeraTable implements SupportsRead, SupportsWrite {
    private final CaseInsensitiveStringMap own;

    /** @param properties options; of a table of a catalog they begin with {@code option.}, and stand among others */
    KeraTable(CaseInsensitiveStringMap properties) {
        Map<String, String> options = new HashMap<>();
        properties.forEach((name, value) -> {
            if (name.startsWith(TableCatalog.OPTION_PREFIX)) {
                options.put(name.substring(TableCatalog.OPTION_PREFIX.length()), value);
            }
        });
        own = options.isEmpty() ? properties : new CaseInsensitiveStringMap(options);
    }

    @Override
    public String name() {
        return "kera " + own.getOrDefault(KeraOptions.STREAM, "");
    }

    @Override
    public Column[] columns() {
        return Arrays.stream(KeraColumn.SCHEMA.fields())
                .map(field -> Column.create(field.name(), field.dataType(), field.nullable()))
                .toArray(Column[]::new);
    }

    @Override
    public Set<TableCapability> capabilities() {
        // Which columns are written says SinkColumns: some of those that are read.
        return Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_WRITE,
                TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        return new KeraScan.Builder(options(given));
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new KeraWrite.Builder(options(info.options()), info);
    }

    /** Those of the table, unless a query gives others. */
    private KeraOptions options(CaseInsensitiveStringMap given) {
        Map<String, String> all = new HashMap<>(own);
        all.putAll(given);
        return new KeraOptions(new CaseInsensitiveStringMap(all));
    }
}
