package io.kera.spark;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

/**
 * Files of a checkpoint that stop the process at one of its steps, to be killed there. A step is anything done to a file of the
 * sink, or to Spark's own log of what is complete.
 */
public final class StoppingFiles extends FileContextBasedCheckpointFileManager {
    static final String STOPPED = "stopped before ";
    private static final AtomicInteger LEFT = new AtomicInteger();

    public StoppingFiles(Path path, Configuration configuration) {
        super(path, configuration);
    }

    /** Stops before the step of this number, counted from 1; 0: goes through. */
    static void stopBefore(int step) {
        LEFT.set(step);
    }

    private static void step(String what, Path path) {
        String text = path.toString();
        boolean counts = text.contains("/" + KeraOptions.SINK_FOLDER + "/") || text.contains("/commits/");
        if (counts && LEFT.get() > 0 && LEFT.decrementAndGet() == 0) {
            System.out.println(STOPPED + what + " " + text);
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrites) {
        step("create", path);
        return super.createAtomic(path, overwrites);
    }

    @Override
    public void renameTempFile(Path from, Path to, boolean overwrites) {
        step("rename", to);
        super.renameTempFile(from, to, overwrites);
    }

    @Override
    public FSDataInputStream open(Path path) {
        step("open", path);
        return super.open(path);
    }

    @Override
    public FileStatus[] list(Path path, PathFilter filter) {
        step("list", path);
        return super.list(path, filter);
    }

    @Override
    public void delete(Path path) {
        step("delete", path);
        super.delete(path);
    }
}
