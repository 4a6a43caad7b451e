package io.kera.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ReadmeTest {
    /** Of how many records it is told that they are packed. */
    private static int packed(String told) {
        return told.lines().mapToInt(line -> Integer.parseInt(line.substring(0, line.indexOf(" packed, up to record ")))).sum();
    }

    @Test
    void theProgramsOfTheReadmeDoWhatItSays(@TempDir Path home) throws Exception {
        try (TestBroker broker = TestBroker.start()) {
            List<String> programs = ReadmePrograms.blocks("java", broker.address());
            assertEquals(8, programs.size());
            assertEquals("a hat is record 0\n", ReadmePrograms.run(programs.get(0), home));
            assertEquals("ann buys a hat\n", ReadmePrograms.run(programs.get(1), home));
            assertEquals("billing reads orders with 0 members\nlane 0 goes on at record 0\n",
                    ReadmePrograms.run(programs.get(2), home));
            assertEquals("new-year holds back 0 bytes\n", ReadmePrograms.run(programs.get(3), home));
            assertEquals("0: a hat\n", ReadmePrograms.run(programs.get(4), home));
            assertEquals("committed: true\n", ReadmePrograms.run(programs.get(5), home));
            assertEquals(4, packed(ReadmePrograms.run(programs.get(6), home)));
        }
        try (TestBroker broker = TestBroker.withUsers("open sesame", "ann")) {
            String program = ReadmePrograms.blocks("java", broker.address()).get(7);
            assertEquals("ann sees 0 streams\n", ReadmePrograms.run(program, home));
        }
    }
}
