package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** What is waited for is told after 2 s, and then seldom. */
class StillTryingTest {
    private final List<String> told = new ArrayList<>();
    private final StillTrying trying = new StillTrying("the coordinator of group g", told::add);

    private void failed(long second) {
        trying.failed(new IOException("it is reading its state"), TimeUnit.SECONDS.toNanos(second));
    }

    @Test
    void tellsWhatItWaitsForAndWhy() {
        failed(10);
        failed(11);
        assertEquals(List.of(), told);
        failed(12);
        failed(13);
        failed(41);
        assertEquals(List.of("the coordinator of group g has not answered for 2 s and is asked again: it is reading its state"), told);
        failed(42);
        assertEquals(2, told.size());
    }

    @Test
    void anAnswerBeginsAnew() {
        failed(10);
        trying.answered();
        failed(13);
        failed(14);
        assertEquals(List.of(), told);
        failed(15);
        assertEquals(1, told.size());
    }
}
