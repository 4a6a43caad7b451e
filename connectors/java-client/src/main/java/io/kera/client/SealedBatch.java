package io.kera.client;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** A batch that takes no more records. */
final class SealedBatch {
    /** A record whose place somebody waits for: its number in the batch. */
    record Tracked(int index, CompletableFuture<RecordPlace> place) {}

    enum Status {
        /** To be sent, for the first time or again. */
        READY,
        /** Its answer is awaited. */
        WAITING,
        /** Its fate is known. */
        DONE
    }

    final int records;
    final List<Tracked> tracked;
    /** When it is given up, by {@link System#nanoTime}. */
    final long deadline;
    /** Bytes of the producer's memory that it takes. */
    final int counted;
    /** Rises with each batch of a producer; a batch that is split anew hands its number on. */
    final long number;

    byte[] bytes;
    int baseSequence;
    Status status = Status.READY;
    /** Why it is to be sent again, if it was refused. */
    AppendReply.Verdict why = AppendReply.Verdict.RETRY;
    /** An attempt ended without an answer, or with one that leaves it open: it may be stored, now or later. */
    boolean uncertain;
    /** Names the last attempt. */
    int attempt;
    /** The place of its first record, if it is stored. */
    RecordPlace first;
    /** Why it was given up. */
    ProduceException error;

    SealedBatch(byte[] bytes, int records, List<Tracked> tracked, long deadline, int counted, long number) {
        this.bytes = bytes;
        this.records = records;
        this.tracked = tracked;
        this.deadline = deadline;
        this.counted = counted;
        this.number = number;
    }

    void giveUp(String message, boolean mayBeStored, Throwable cause) {
        status = Status.DONE;
        error = new ProduceException(message, mayBeStored, cause);
    }

    /** Tells those who wait for a record's place. */
    void complete() {
        for (Tracked record : tracked) {
            if (error != null) {
                record.place().completeExceptionally(error);
            } else {
                record.place().complete(new RecordPlace(
                        first.streamlet(), first.lane(), first.ordinal() + record.index(), first.appendTime()));
            }
        }
    }
}
