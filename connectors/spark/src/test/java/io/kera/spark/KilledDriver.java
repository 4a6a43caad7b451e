package io.kera.spark;

import java.io.IOException;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.Trigger;

/** A driver, in a process of its own, that copies stream s to stream t exactly once until all is copied. */
public final class KilledDriver {
    private KilledDriver() {}

    /** @param words the broker's address, the checkpoint, and the step to stop before, 0 for none */
    public static void main(String[] words) throws Exception {
        Thread parent = new Thread(KilledDriver::endWithTheTest);
        parent.setDaemon(true);
        parent.start();
        StoppingFiles.stopBefore(Integer.parseInt(words[2]));
        SparkSession spark = TestSpark.session();
        spark.conf().set("spark.sql.streaming.checkpointFileManagerClass", StoppingFiles.class.getName());
        spark.readStream()
                .format("kera")
                .option("bootstrap", words[0])
                .option("stream", "s")
                .option("maxRecordsPerTrigger", DriverKillTest.BATCH)
                .load()
                .select("key", "value")
                .writeStream()
                .format("kera")
                .option("bootstrap", words[0])
                .option("stream", "t")
                .option("sink.delivery-guarantee", "exactly-once")
                .option("checkpointLocation", words[1])
                .trigger(Trigger.AvailableNow())
                .start()
                .awaitTermination();
        System.exit(0);
    }

    /** A test that is gone does not leave a driver behind. */
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
