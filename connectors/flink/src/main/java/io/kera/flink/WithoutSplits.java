package io.kera.flink;

import org.apache.flink.api.connector.source.SourceEvent;

/** The enumerator to a reader: no split waits for it. One that never had any is idle then, and so is one without a range. */
record WithoutSplits() implements SourceEvent {
    private static final long serialVersionUID = 1L;
}
