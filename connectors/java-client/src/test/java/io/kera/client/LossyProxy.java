package io.kera.client;

import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** Passes connections on to a broker; can swallow what the broker answers and then cut the connections. */
final class LossyProxy implements Closeable {
    private static final int HELLO_REPLY = 12;
    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private volatile String to;
    private final List<Socket> sockets = new ArrayList<>();
    private volatile boolean swallows;
    /** Bytes of a connection's answers that arrive all the same. */
    private volatile int spared;
    private final CountDownLatch swallowed = new CountDownLatch(1);
    private final CountDownLatch closed = new CountDownLatch(1);
    private volatile int accepted;
    private volatile boolean stops;

    LossyProxy() throws IOException {
        Thread thread = new Thread(this::accept, "proxy");
        thread.setDaemon(true);
        thread.start();
    }

    String address() {
        return "127.0.0.1:" + listener.getLocalPort();
    }

    /** Connections so far. */
    int accepted() {
        return accepted;
    }

    /** Passes what comes on to HOST:PORT. */
    void passTo(String address) {
        to = address;
    }

    /** Answers do not arrive from here on. */
    void swallowAnswers() {
        swallows = true;
    }

    /** The same of what follows the hellos of connections that are made from here on. */
    void swallowBehindHello() {
        spared = HELLO_REPLY;
        swallows = true;
    }

    /** Nothing that is sent to the broker is read from here on: who sends more than buffers take is held up. */
    void readNothing() {
        stops = true;
    }

    /** Waits until an answer was swallowed. */
    void awaitSwallowed() throws InterruptedException {
        swallowed.await();
    }

    /** Cuts all connections; those made from here on work. */
    void cut() throws IOException {
        synchronized (sockets) {
            for (Socket socket : sockets) {
                socket.close();
            }
            sockets.clear();
            swallows = false;
        }
    }

    private void accept() {
        try {
            while (true) {
                Socket client = listener.accept();
                accepted++;
                String[] parts = to.split(":");
                Socket broker = new Socket(parts[0], Integer.parseInt(parts[1]));
                synchronized (sockets) {
                    sockets.add(client);
                    sockets.add(broker);
                }
                pass(client, broker, false);
                pass(broker, client, true);
            }
        } catch (IOException error) {
            // It is closed.
        }
    }

    private void pass(Socket from, Socket to, boolean answers) {
        Thread thread = new Thread(() -> {
            try (InputStream in = from.getInputStream(); OutputStream out = to.getOutputStream()) {
                byte[] bytes = new byte[64 << 10];
                int passed = 0;
                for (int read; (read = in.read(bytes)) >= 0; ) {
                    if (stops && !answers) {
                        swallowed.countDown();
                        closed.await();
                        return;
                    }
                    // What is spared and what is not may come in one piece.
                    int pass = answers && swallows ? Math.max(0, Math.min(read, spared - passed)) : read;
                    out.write(bytes, 0, pass);
                    passed += pass;
                    if (pass < read) {
                        swallowed.countDown();
                    }
                }
            } catch (IOException | InterruptedException error) {
                // It was cut.
            }
        }, "proxy-pass");
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        closed.countDown();
        cut();
    }
}
