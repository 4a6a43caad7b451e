package io.kera.spark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/** Small files in a folder of a query's checkpoint, each written once and as a whole. */
final class CheckpointFiles {
    private final Path folder;
    private final CheckpointFileManager files;

    CheckpointFiles(String folder) {
        this.folder = new Path(folder);
        Configuration hadoop =
                ((org.apache.spark.sql.classic.SparkSession) SparkSession.active()).sessionState().newHadoopConf();
        files = CheckpointFileManager.create(this.folder, hadoop);
    }

    /** What a file has; null if there is none. */
    String read(String name) throws IOException {
        Path path = new Path(folder, name);
        if (!files.exists(path)) {
            return null;
        }
        try (FSDataInputStream in = files.open(path)) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    /** Writes a file. False if it was there before: then it stays as it is. */
    boolean create(String name, String text) throws IOException {
        Path path = new Path(folder, name);
        files.mkdirs(folder);
        if (files.exists(path)) {
            return false;
        }
        CancellableFSDataOutputStream out = files.createAtomic(path, false);
        try {
            out.write(text.getBytes(StandardCharsets.UTF_8));
            out.close();
            return true;
        } catch (FileAlreadyExistsException other) {
            return false;
        } catch (IOException | RuntimeException error) {
            out.cancel();
            throw error;
        }
    }

    /** The names of all files. */
    List<String> names() throws IOException {
        List<String> names = new ArrayList<>();
        if (files.exists(folder)) {
            for (FileStatus file : files.list(folder)) {
                names.add(file.getPath().getName());
            }
        }
        return names;
    }

    void delete(String name) {
        files.delete(new Path(folder, name));
    }
}
