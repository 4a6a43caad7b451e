package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.ErrorCodes;
import io.kera.client.KeraException;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class SilenceTest {
    private static final IOException LOST = new IOException("the connection ended");

    private final List<String> told = new ArrayList<>();
    private final Silence silence = new Silence(Duration.ofMinutes(2).toNanos(), told::add);

    private void fails(long seconds, IOException error) throws IOException {
        attempt(seconds, seconds, error);
    }

    private void attempt(long begun, long ended, IOException error) throws IOException {
        silence.failed("s:0/1", 7, "b:1", error, Duration.ofSeconds(begun).toNanos(), Duration.ofSeconds(ended).toNanos());
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
    void anOwnerHasTenSecondsToHearOfALane() {
        for (int code : new int[] {ErrorCodes.UNKNOWN_STREAM, ErrorCodes.UNKNOWN_STREAMLET, ErrorCodes.UNKNOWN_LANE}) {
            KeraException unheard = new KeraException(code, "not there");
            silence.ended("s:0/1");
            assertDoesNotThrow(() -> fails(0, unheard));
            assertDoesNotThrow(() -> fails(9, unheard));
            assertThrows(IOException.class, () -> fails(10, unheard));
        }
        silence.ended("s:0/1");
        assertThrows(IOException.class, () -> fails(0, new KeraException(ErrorCodes.OUT_OF_RANGE, "gone")));
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

    @Test
    void theLogTellsAfterTwoSecondsWhichLaneOfWhichBroker() throws IOException {
        fails(0, LOST);
        fails(1, LOST);
        assertEquals(List.of(), told);
        fails(2, LOST);
        fails(3, LOST);
        assertEquals(
                List.of("lane s:0/1 of broker b:1 cannot be read at 7 since 2 s: the connection ended; it is asked again"), told);
    }

    @Test
    void attemptsThatTakeLongAreNoTimeInWhichNobodyAsked() {
        assertDoesNotThrow(() -> attempt(0, 70, LOST));
        String told = assertThrows(IOException.class, () -> attempt(70, 140, LOST)).getMessage();
        assertTrue(told.contains("of broker b:1"), told);
    }
}
