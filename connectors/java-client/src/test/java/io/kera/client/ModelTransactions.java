package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertFalse;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** The coordinator of transactions, and a copy of a group's stream that is written in them: no record counts there twice. */
final class ModelTransactions {
    enum Outcome { OPEN, COMMITTED, ABORTED }

    private record Written(int lane, long from, long next) {}

    static final class Transaction {
        private final int number;
        /** Whose positions it commits, up to where. */
        final Map<Lease, Long> positions = new HashMap<>();
        final String member;
        private final List<Written> written = new ArrayList<>();
        private Outcome outcome = Outcome.OPEN;

        private Transaction(int number, String member) {
            this.number = number;
            this.member = member;
        }

        void write(Lease lease, long from, long next) {
            written.add(new Written(lease.lane(), from, next));
            positions.merge(lease, next, Math::max);
        }
    }

    private final ModelGroup group;
    private final Random dice;
    private final BitSet[] copied = new BitSet[ModelGroup.LANES];
    /** How these ended the group does not know yet. */
    private final List<Transaction> untold = new ArrayList<>();
    private final List<Transaction> open = new ArrayList<>();
    private int begun;

    ModelTransactions(ModelGroup group, Random dice) {
        this.group = group;
        this.dice = dice;
        for (int lane = 0; lane < copied.length; lane++) {
            copied[lane] = new BitSet();
        }
    }

    Transaction begin(String member) {
        Transaction transaction = new Transaction(++begun, member);
        open.add(transaction);
        return transaction;
    }

    /** The error of positions that are sent; 0: they are part of the transaction. */
    int send(Transaction transaction) {
        if (transaction.outcome != Outcome.OPEN) {
            return ErrorCodes.TRANSACTION_NOT_OPEN;
        }
        return group.send(transaction.member, transaction.number, transaction.positions);
    }

    /** How it ended, whatever was asked for. */
    Outcome end(Transaction transaction, boolean commit) {
        if (transaction.outcome == Outcome.OPEN) {
            transaction.outcome = commit ? Outcome.COMMITTED : Outcome.ABORTED;
            open.remove(transaction);
            untold.add(transaction);
            if (commit) {
                transaction.written.forEach(this::copy);
            }
        }
        return transaction.outcome;
    }

    private void copy(Written written) {
        for (long ordinal = written.from(); ordinal < written.next(); ordinal++) {
            assertFalse(copied[written.lane()].get((int) ordinal), "lane " + written.lane() + ": " + ordinal + " is copied twice");
            copied[written.lane()].set((int) ordinal);
        }
    }

    boolean isCopied(int lane, int ordinal) {
        return copied[lane].get(ordinal);
    }

    /** One that is open is over its time. */
    void abortOne() {
        if (!open.isEmpty()) {
            end(open.get(dice.nextInt(open.size())), false);
        }
    }

    /** All are that nobody goes on with. */
    void abortAllBut(List<Transaction> going) {
        List.copyOf(open).stream().filter(each -> !going.contains(each)).forEach(each -> end(each, false));
    }

    /** The group hears how one has ended. */
    void tellOne() {
        if (!untold.isEmpty()) {
            Transaction ended = untold.remove(dice.nextInt(untold.size()));
            group.endPositions(ended.number, ended.outcome == Outcome.COMMITTED);
        }
    }

    void tellAll() {
        while (!untold.isEmpty()) {
            tellOne();
        }
    }
}
