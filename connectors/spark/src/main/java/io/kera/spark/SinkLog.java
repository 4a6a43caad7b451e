package io.kera.spark;

import io.kera.client.TransactionHandle;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * What the sink of a query has decided, in the query's checkpoint. Each entry is a file, whose number is the one after the
 * entry before; the newest has all that counts. A file is made by one driver only, so of two that run the same query one
 * finds out.
 */
final class SinkLog {
    /** By folder: the entry after which a run of this process has left nothing open. */
    private static final Map<String, Long> LEFT = new ConcurrentHashMap<>();
    private static final String VERSION = "v1";

    /**
     * A micro-batch that counts.
     *
     * @param epoch its number; those before count too. -1: none yet
     * @param transactions which have its records, and are committed, or will be
     */
    record Decision(long epoch, List<TransactionHandle> transactions) {
        static final Decision NONE = new Decision(-1, List.of());

        String text() {
            StringBuilder text = new StringBuilder(VERSION).append("\nepoch ").append(epoch).append('\n');
            for (TransactionHandle handle : transactions) {
                text.append(HexFormat.of().formatHex(handle.encoded())).append('\n');
            }
            return text.append("end\n").toString();
        }

        static Decision parse(String text) {
            String[] lines = text.split("\n");
            if (!lines[0].equals(VERSION)) {
                throw new IllegalArgumentException("the checkpoint's sink has the form " + lines[0]
                        + ": it was written by another version of the connector, use a newer one");
            }
            if (lines.length < 3 || !lines[1].startsWith("epoch ") || !lines[lines.length - 1].equals("end")) {
                throw new IllegalArgumentException("the checkpoint's list of transactions is damaged: " + text);
            }
            List<TransactionHandle> handles = new ArrayList<>();
            for (int n = 2; n < lines.length - 1; n++) {
                handles.add(TransactionHandle.decoded(HexFormat.of().parseHex(lines[n])));
            }
            return new Decision(Long.parseLong(lines[1].substring(6)), handles);
        }
    }

    private final String folder;
    private final CheckpointFiles files;
    private long last = -1;
    private Decision decided = Decision.NONE;

    SinkLog(String folder) {
        this.folder = folder;
        files = new CheckpointFiles(folder);
    }

    /** Begins a micro-batch: no driver that began one before decides anything from now on. */
    void begin() throws IOException {
        last = newest();
        String text = last < 0 ? Decision.NONE.text() : files.read(String.valueOf(last));
        if (text == null) {
            throw superseded();
        }
        decided = Decision.parse(text);
        Long left = LEFT.remove(folder);
        if (left == null || left != last) {
            append(decided);
        }
    }

    Decision decided() {
        return decided;
    }

    /** From now on the transactions of this micro-batch are to be committed, by whoever comes. */
    void decide(Decision next) throws IOException {
        append(next);
    }

    /** Nothing is left to do for the newest decision. */
    void settled() throws IOException {
        for (String name : files.names()) {
            if (number(name) >= 0 && number(name) < last) {
                files.delete(name);
            }
        }
        LEFT.put(folder, last);
    }

    private void append(Decision next) throws IOException {
        // Another driver may have deleted the file of this number, but never its newest one.
        if (!files.create(String.valueOf(last + 1), next.text()) || newest() != last + 1) {
            throw superseded();
        }
        last++;
        decided = next;
    }

    private IOException superseded() {
        return new IOException("another run of the query writes with the same checkpoint, " + folder
                + ": this one ends, and the other one goes on");
    }

    /** -1: there is none. */
    private long newest() throws IOException {
        long newest = -1;
        for (String name : files.names()) {
            newest = Math.max(newest, number(name));
        }
        return newest;
    }

    /** -1: not an entry's. */
    private static long number(String name) {
        try {
            return Long.parseLong(name);
        } catch (NumberFormatException other) {
            return -1;
        }
    }
}
