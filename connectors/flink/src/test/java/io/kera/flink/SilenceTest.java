package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.time.Duration;
import org.junit.jupiter.api.Test;

class SilenceTest {
    private static final IOException LOST = new IOException("the connection ended");

    private final Silence silence = new Silence();

    private void fails(long seconds, IOException error) throws IOException {
        silence.failed("s:0/1", 7, error, Duration.ofSeconds(seconds).toNanos());
    }

    @Test
    void aLaneThatIsSilentForTwoMinutesFailsTheJob() {
        for (int second = 0; second <= 120; second += 5) {
            int now = second;
            assertDoesNotThrow(() -> fails(now, LOST));
        }
        String told = assertThrows(IOException.class, () -> fails(121, LOST)).getMessage();
        assertTrue(told.contains("s:0/1") && told.contains("at 7") && told.contains("connection ended"), told);
    }

    @Test
    void silenceEndsWithAnAnswerAndWhereNobodyAsks() {
        assertDoesNotThrow(() -> fails(0, LOST));
        assertDoesNotThrow(() -> fails(59, LOST));
        silence.ended("s:0/1");
        assertDoesNotThrow(() -> fails(100, LOST));
        assertDoesNotThrow(() -> fails(159, LOST));
        // Readers had enough to do meanwhile.
        assertDoesNotThrow(() -> fails(230, LOST));
    }
}
