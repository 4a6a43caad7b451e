package io.kera.client;

import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;

/** The bytes of a connection to a broker, plain or encrypted. One thread reads, another may write. */
public interface Channel extends Closeable {
    /** What the broker sends. */
    InputStream in() throws IOException;

    /** What the broker receives. Not buffered. */
    OutputStream out() throws IOException;

    /** Longest wait of a read, milliseconds; 0 is for ever. */
    void readTimeout(int millis) throws IOException;
}
