package io.kera.client;

import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;

/**
 * How connections are made.
 *
 * @param timeoutMillis how long connecting, and each call, may take
 * @param tls trust and certificate for TLS, see {@link Tls}; null: none
 * @param login whom the client proves to be on each connection; null: none
 */
public record ConnectOptions(int timeoutMillis, SSLContext tls, Login login) {
    /** Before a broker that is busy is asked again, at most. */
    private static final int PAUSE_MILLIS = 200;

    /** 10 s, without TLS and without a user. */
    public static final ConnectOptions DEFAULT = new ConnectOptions(10_000, null, null);

    public ConnectOptions {
        if (timeoutMillis < 1) {
            throw new IllegalArgumentException("timeoutMillis is " + timeoutMillis + ": use 1 or more");
        }
    }

    /** The same with TLS. */
    public ConnectOptions withTls(SSLContext context) {
        return new ConnectOptions(timeoutMillis, context, login);
    }

    /** The same as a user. */
    public ConnectOptions withLogin(Login user) {
        return new ConnectOptions(timeoutMillis, tls, user);
    }

    /** The same with another timeout. */
    public ConnectOptions withTimeoutMillis(int millis) {
        return new ConnectOptions(millis, tls, login);
    }

    /**
     * Connects to HOST:PORT, and logs in. With TLS the certificate must have the host's name. A broker that is too busy to look
     * at a login is asked again within the timeout.
     *
     * @throws IllegalArgumentException if the address is none
     * @throws LoginException if the broker does not let the user in
     */
    Channel connect(String address) throws IOException {
        long begun = System.nanoTime();
        while (true) {
            try {
                return connectOnce(address);
            } catch (Login.Later error) {
                int pause = ThreadLocalRandom.current().nextInt(PAUSE_MILLIS) + 1;
                if (System.nanoTime() - begun + TimeUnit.MILLISECONDS.toNanos(pause) > TimeUnit.MILLISECONDS.toNanos(timeoutMillis)) {
                    throw new IOException("broker " + address + " cannot be reached: " + error.getMessage(), error);
                }
                pause(pause);
            }
        }
    }

    private static void pause(int millis) throws InterruptedIOException {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while a broker is too busy to look at a login");
        }
    }

    private Channel connectOnce(String address) throws IOException {
        int colon = address.lastIndexOf(':');
        if (colon < 1) {
            throw new IllegalArgumentException("\"" + address + "\" is not a broker address: use HOST:PORT");
        }
        String host = address.substring(0, colon).replaceAll("^\\[|\\]$", "");
        int port;
        try {
            port = Integer.parseInt(address.substring(colon + 1));
        } catch (NumberFormatException error) {
            throw new IllegalArgumentException("\"" + address + "\" is not a broker address: use HOST:PORT", error);
        }
        Socket socket = new Socket();
        try {
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(timeoutMillis);
            socket.connect(new InetSocketAddress(host, port), timeoutMillis);
            Channel channel = new SocketChannel(socket, tls == null ? socket : encrypted(socket, host, port));
            if (login != null) {
                checkSecrecy(socket.getInetAddress(), address);
                login.prove(channel, address);
            }
            return channel;
        } catch (IOException | RuntimeException error) {
            socket.close();
            if (error instanceof IOException && !(error instanceof LoginException || error instanceof Login.Later)) {
                throw new IOException("broker " + address + " cannot be reached: " + error.getMessage(), error);
            }
            throw error;
        }
    }

    void checkSecrecy(InetAddress broker, String address) throws LoginException {
        if (tls != null || broker.isLoopbackAddress()) {
            return;
        }
        if (login.mechanism() == SaslMechanism.PLAIN) {
            throw new LoginException("PLAIN sends the password itself, and without TLS everybody on the way to broker " + address
                    + " could read it: use TLS, or SCRAM-SHA-512");
        }
        if (login.mechanism() == SaslMechanism.OAUTHBEARER) {
            throw new LoginException("OAUTHBEARER sends the token itself, and without TLS everybody on the way to broker " + address
                    + " could read it: use TLS");
        }
    }

    private Socket encrypted(Socket plain, String host, int port) throws IOException {
        SSLSocket socket = (SSLSocket) tls.getSocketFactory().createSocket(plain, host, port, true);
        SSLParameters parameters = socket.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        socket.setSSLParameters(parameters);
        socket.startHandshake();
        return socket;
    }

    /** A socket, and what is said over it, which is the same without TLS. */
    private record SocketChannel(Socket plain, Socket socket) implements Channel {
        @Override
        public InputStream in() throws IOException {
            return socket.getInputStream();
        }

        @Override
        public OutputStream out() throws IOException {
            return socket.getOutputStream();
        }

        @Override
        public void readTimeout(int millis) throws IOException {
            socket.setSoTimeout(millis);
        }

        @Override
        public void close() throws IOException {
            // Before TLS says goodbye, for which it would wait until a write is over that nobody reads.
            plain.close();
            socket.close();
        }
    }
}
