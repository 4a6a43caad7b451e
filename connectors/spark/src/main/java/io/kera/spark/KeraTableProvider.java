package io.kera.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The format {@code kera}. */
public final class KeraTableProvider implements TableProvider, DataSourceRegister {
    @Override
    public String shortName() {
        return "kera";
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return KeraColumn.SCHEMA;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new KeraTable(new CaseInsensitiveStringMap(properties));
    }
}
