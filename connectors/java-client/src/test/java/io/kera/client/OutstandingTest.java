package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class OutstandingTest {
    /** A thread that waits for all batches below {@code mark}, once it does. */
    private static FutureTask<Void> waiting(Outstanding outstanding, long mark) {
        FutureTask<Void> task = new FutureTask<>(() -> {
            outstanding.await(mark);
            return null;
        });
        Thread thread = new Thread(task);
        thread.start();
        while (thread.getState() != Thread.State.WAITING) {
            Thread.onSpinWait();
        }
        return task;
    }

    @Test
    void allWhoWaitForABatchHearThatItWasGivenUp() throws Exception {
        Outstanding outstanding = new Outstanding();
        long batch = outstanding.begin();
        List<FutureTask<Void>> all = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            all.add(waiting(outstanding, outstanding.mark()));
        }
        outstanding.end(batch, new ProduceException("it was given up", false, null));
        for (FutureTask<Void> each : all) {
            ExecutionException error = assertThrows(ExecutionException.class, each::get);
            assertInstanceOf(ProduceException.class, error.getCause());
        }
        // They were told: nobody else is.
        outstanding.await(outstanding.mark());
    }
}
