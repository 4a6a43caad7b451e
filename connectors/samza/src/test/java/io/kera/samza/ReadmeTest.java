package io.kera.samza;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.kera.client.Admin;
import io.kera.client.Producer;
import io.kera.client.ProducerOptions;
import io.kera.client.ReadmePrograms;
import io.kera.client.TestBroker;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The program of the README does what it says. */
@Timeout(240)
class ReadmeTest {
    @Test
    void theProgramRunsAsPrinted(@TempDir Path home) throws Exception {
        try (TestBroker broker = TestBroker.start(); Admin admin = TestJobs.admin(broker.address())) {
            broker.run("", "stream", "create", "orders");
            broker.run("", "stream", "create", "totals");
            try (Producer producer = new Producer("orders", ProducerOptions.to(broker.address()))) {
                for (String order : List.of("ann 3", "bob 7", "ann 5")) {
                    String[] words = order.split(" ");
                    producer.append(TestJobs.bytes(words[0]), TestJobs.bytes(words[1]));
                }
            }
            List<String> programs = ReadmePrograms.blocks("java", broker.address());
            assertEquals(1, programs.size());
            ReadmePrograms.run(programs.get(0), home);
            assertEquals(List.of("ann=3", "ann=8", "bob=7"), TestJobs.pairs(admin, "totals").stream()
                    .map(pair -> pair.getKey() + "=" + pair.getValue()).sorted().toList());
        }
    }
}
