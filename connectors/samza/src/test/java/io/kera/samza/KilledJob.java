package io.kera.samza;

import java.io.IOException;

/** A job, in a process of its own, that sends each record's place in stream s to stream t until it is killed. */
public final class KilledJob {
    private KilledJob() {}

    /** @param words the broker's address, and what each record that it sends begins with */
    public static void main(String[] words) {
        Thread parent = new Thread(KilledJob::endWithTheTest);
        parent.setDaemon(true);
        parent.start();
        TestJobs.run(TestJobs.copyPlaces(words[1], KilledJobTest.NANOS_EACH), TestJobs.config(words[0], "killed")).waitForFinish();
        System.exit(1);
    }

    /** A test that is gone does not leave a job behind. */
    private static void endWithTheTest() {
        try {
            while (System.in.read() >= 0) {
                // Nothing is told.
            }
        } catch (IOException error) {
            // As the end.
        }
        Runtime.getRuntime().halt(1);
    }
}
