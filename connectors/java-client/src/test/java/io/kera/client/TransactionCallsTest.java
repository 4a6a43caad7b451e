package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Coordinators that are reading their state, or are none any more, are asked again. */
@Timeout(60)
class TransactionCallsTest {
    /** Answers the next requests with these errors, 0 for none; the last one stands for all that follow. */
    private static FakeBroker refusing(Integer... errors) throws IOException {
        List<Integer> left = new ArrayList<>(Arrays.asList(errors));
        FakeBroker broker = FakeBroker.late(new FakeBroker.Answers() {
            @Override
            public byte[] body(FrameChannel.Frame request) {
                return new byte[0];
            }

            @Override
            public byte[] header(FrameChannel.Frame request) {
                synchronized (left) {
                    int error = left.size() > 1 ? left.remove(0) : left.get(0);
                    return error == 0 ? new byte[0] : new Wire.Writer().number(1, error).text(2, "planted").done();
                }
            }
        });
        broker.goOn();
        return broker;
    }

    @Test
    void aListWaitsForCoordinatorsThatReadTheirState() throws Exception {
        try (FakeBroker broker = refusing(ErrorCodes.COORDINATOR_LOADING, ErrorCodes.COORDINATOR_LOADING, 0);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            assertEquals(List.of(), transactions.open("prefix/"));
            assertEquals(3, broker.asked());
        }
    }

    @Test
    void whatWasNotAbortedSaysWhy() throws Exception {
        byte[] left = new Wire.Writer().bytes(1, new TransactionHandle("a/1", 7, (short) 2, 3).encoded())
                .number(2, ErrorCodes.NOT_COORDINATOR).text(3, "planted").done();
        try (FakeBroker broker = FakeBroker.late(request -> new Wire.Writer().bytes(1, left).done());
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            broker.goOn();
            Transactions.Aborted told = transactions.abortByPrefix("a/", Transactions.Which.OPEN).get(0);
            assertEquals(new TransactionHandle("a/1", 7, (short) 2, 3), told.handle());
            assertEquals(ErrorCodes.NOT_COORDINATOR, told.refused().orElseThrow().code());
        }
    }

    @Test
    void aCallWaitsForTheCoordinatorAndFollowsIt() throws Exception {
        // In turn: who the coordinator is, that, the call, the call, who it is then, the call.
        try (FakeBroker broker = refusing(ErrorCodes.COORDINATOR_LOADING, 0, ErrorCodes.COORDINATOR_LOADING,
                        ErrorCodes.NOT_COORDINATOR, 0, 0);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            transactions.forget(new TransactionHandle("id", 1, (short) 0, 1));
            assertEquals(6, broker.asked());
        }
    }

    @Test
    void theWaitHasAnEndThatNamesWhoDidNotAnswer() throws Exception {
        try (FakeBroker broker = refusing(ErrorCodes.COORDINATOR_LOADING);
                TransactionCalls calls = new TransactionCalls(
                        List.of(broker.address()), ConnectOptions.DEFAULT, Duration.ofMillis(50).toNanos())) {
            IOException late = assertThrows(
                    IOException.class, () -> calls.callAny(Methods.LIST_OPEN_TRANSACTIONS, new byte[0]));
            assertTrue(late.getMessage().startsWith("one of the coordinators of transactions did not answer in time"), late.getMessage());
            assertTrue(late.getMessage().contains("planted"), late.getMessage());
        }
    }

    @Test
    void aChangeThatAStoppingBrokerMayHaveMadeIsNotAskedForAgain() throws Exception {
        for (int code : new int[] {ErrorCodes.SHUTTING_DOWN, ErrorCodes.TIMEOUT}) {
            try (FakeBroker broker = refusing(code, 0);
                    FakeBroker other = refusing(0);
                    Admin admin = new Admin(List.of(broker.address(), other.address()), ConnectOptions.DEFAULT)) {
                IOException open = assertThrows(IOException.class, () -> admin.createStream("s", 1, 1));
                assertTrue(open.getMessage().contains("may have been done"), open.getMessage());
                assertEquals(1, broker.asked());
                assertEquals(0, other.asked());
            }
        }
    }

    @Test
    void whatIsRefusedForGoodIsNotAskedAgain() throws Exception {
        try (FakeBroker broker = refusing(ErrorCodes.NOT_AUTHORIZED);
                Transactions transactions = new Transactions(List.of(broker.address()), ConnectOptions.DEFAULT)) {
            KeraException refused = assertThrows(KeraException.class, () -> transactions.open("prefix/"));
            assertEquals(ErrorCodes.NOT_AUTHORIZED, refused.code());
            assertEquals(1, broker.asked());
        }
    }
}
