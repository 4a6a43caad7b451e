package io.kera.flink;

import java.util.List;
import org.apache.flink.api.connector.source.SourceEvent;

/** A reader to the enumerator: these splits were read to their end. It may be said again. */
record SplitsFinished(List<String> ids) implements SourceEvent {
    private static final long serialVersionUID = 1L;
}
