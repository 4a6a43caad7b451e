package io.kera.flink;

import java.util.List;
import org.apache.flink.api.connector.source.SourceEvent;

/** The enumerator to a reader: a completed checkpoint has these splits as finished, so the reader need not keep them. */
record FinishRecorded(List<String> ids) implements SourceEvent {
    private static final long serialVersionUID = 1L;
}
