package io.kera.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;

/** Ends transactions by their handles, from any process, and finds those that nobody has ended. Thread-safe. */
public final class Transactions implements AutoCloseable {
    private static final int PAGE = 1000;
    private static final long DEADLINE_NANOS = Duration.ofSeconds(30).toNanos();

    private final TransactionCalls calls;

    /**
     * A transaction that is open or prepared.
     *
     * @param handle its handle
     * @param prepared whether it is prepared: otherwise its producer may go on
     * @param user who prepared it
     */
    public record Open(TransactionHandle handle, boolean prepared, String user) {}

    /** Asks the brokers at these addresses, HOST:PORT. */
    public Transactions(List<String> bootstrap, ConnectOptions options) {
        calls = new TransactionCalls(bootstrap, options, DEADLINE_NANOS);
    }

    /**
     * Commits a transaction. One that was committed before is committed.
     *
     * @return false if it was aborted
     * @throws KeraException with {@link ErrorCodes#UNKNOWN_TRANSACTION} if nobody remembers it
     * @throws IOException if no answer came: ask again
     */
    public boolean commit(TransactionHandle handle) throws IOException {
        return calls.end(handle, true);
    }

    /**
     * Aborts a transaction. One that was aborted before is aborted.
     *
     * @return false if it was committed
     * @throws KeraException as {@link #commit}
     * @throws IOException if no answer came: ask again
     */
    public boolean abort(TransactionHandle handle) throws IOException {
        return !calls.end(handle, false);
    }

    /** Has the brokers forget how a transaction ended, and its transactional id. */
    public void forget(TransactionHandle handle) throws IOException {
        calls.named(Methods.FORGET_TRANSACTION, handle);
    }

    /**
     * Ends whatever a transactional id has open: what is prepared is aborted, and a producer that still goes on is fenced.
     */
    public void abortAll(Open open) throws IOException {
        String id = open.handle().transactionalId();
        if (open.prepared()) {
            abort(open.handle());
        }
        while (true) {
            try {
                calls.init(id, 0, null, false);
                return;
            } catch (KeraException error) {
                if (error.code() != ErrorCodes.TRANSACTION_PREPARED) {
                    throw error;
                }
            }
            // Its producer was faster.
            for (Open each : open(id)) {
                if (each.prepared() && each.handle().transactionalId().equals(id)) {
                    abort(each.handle());
                }
            }
        }
    }

    /**
     * What became of a transaction that was to be {@linkplain Transactions#abortByPrefix aborted}.
     *
     * @param refused why it is not aborted; empty: it is. What is {@linkplain ErrorCodes#isRetryable retryable} may be asked for again;
     *     otherwise somebody else has ended it
     */
    public record Aborted(TransactionHandle handle, Optional<KeraException> refused) {}

    /**
     * Which transactions {@link Transactions#abortByPrefix} aborts beside those that are open.
     *
     * @param prepared those that are prepared, or open without a timeout, as well
     * @param labelAbove only ids of which all that follows the prefix is a decimal number above this; empty: all
     */
    public record Which(boolean prepared, OptionalLong labelAbove) {
        /** Only what is open. */
        public static final Which OPEN = new Which(false, OptionalLong.empty());
    }

    /**
     * Aborts the open transactions whose transactional ids begin so, in the whole cluster, and fences their producers, which begin no
     * other one: what earlier runs of a program left. Ids for which the user has not the right {@code write} are left alone and not
     * told. So are ids with nothing open, whose producers go on: begin under an id to fence whoever had it.
     *
     * @return what became of each, sorted by id
     * @throws KeraException with {@link ErrorCodes#INVALID_ARGUMENT} if the prefix is empty
     * @throws IOException if a broker has not answered within 30 s that may have some: others may be aborted; ask again
     */
    public List<Aborted> abortByPrefix(String prefix, Which which) throws IOException {
        List<Aborted> all = new ArrayList<>();
        boolean more = true;
        while (more) {
            int before = all.size();
            Wire.Writer request = new Wire.Writer().text(1, prefix).number(2, which.prepared() ? 1 : 0);
            which.labelAbove().ifPresent(label -> request.present(3, label));
            if (before > 0) {
                request.text(4, all.get(before - 1).handle().transactionalId());
            }
            more = false;
            Wire.Reader fields = new Wire.Reader(calls.callAny(Methods.ABORT_TRANSACTIONS, request.done()));
            for (int field; (field = fields.next()) != 0; ) {
                switch (field) {
                    case 1 -> all.add(aborted(fields.part()));
                    case 2 -> more = fields.varint() != 0;
                    default -> fields.skip();
                }
            }
            // A page without a transaction would be asked for again for ever.
            more &= all.size() > before;
        }
        return all;
    }

    private static Aborted aborted(ByteBuffer in) {
        TransactionHandle handle = TransactionHandle.decoded(new byte[0]);
        int error = 0;
        String message = "";
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> handle = TransactionHandle.read(fields.part());
                case 2 -> error = (int) fields.varint();
                case 3 -> message = fields.text();
                default -> fields.skip();
            }
        }
        return new Aborted(handle, error == 0 ? Optional.empty() : Optional.of(new KeraException(error, message)));
    }

    /**
     * The transactions that are open or prepared, whose transactional ids begin so; sorted by id. Coordinators that are reading
     * their state are waited for: without one of them it would not be all.
     *
     * @throws IOException if one has not answered within 30 s
     */
    public List<Open> open(String prefix) throws IOException {
        List<Open> all = new ArrayList<>();
        boolean more = true;
        while (more) {
            String after = all.isEmpty() ? "" : all.get(all.size() - 1).handle().transactionalId();
            byte[] request = new Wire.Writer().text(1, prefix).text(4, after).number(5, PAGE).done();
            more = false;
            Wire.Reader fields = new Wire.Reader(calls.callAny(Methods.LIST_OPEN_TRANSACTIONS, request));
            for (int field; (field = fields.next()) != 0; ) {
                switch (field) {
                    case 1 -> all.add(one(fields.part()));
                    case 2 -> more = fields.varint() != 0;
                    default -> fields.skip();
                }
            }
        }
        return all;
    }

    private static Open one(ByteBuffer in) {
        TransactionHandle handle = null;
        long prepared = 0;
        String user = "";
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> handle = TransactionHandle.read(fields.part());
                case 3 -> prepared = fields.varint();
                case 4 -> user = fields.text();
                default -> fields.skip();
            }
        }
        return new Open(handle, prepared != 0, user);
    }

    @Override
    public void close() {
        calls.close();
    }
}
