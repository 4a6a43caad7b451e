package io.kera.flink;

import org.apache.flink.api.connector.source.SourceEvent;

/** The enumerator to a reader: its share of the records that are in no reader's range yet. */
record WaitingRecords(long records) implements SourceEvent {
    private static final long serialVersionUID = 1L;
}
