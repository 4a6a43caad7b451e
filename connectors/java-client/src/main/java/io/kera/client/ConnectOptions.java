package io.kera.client;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;

/**
 * How connections are made.
 *
 * @param timeoutMillis how long connecting, and each call, may take
 * @param tls trust and certificate for TLS, see {@link Tls}; null: none
 */
public record ConnectOptions(int timeoutMillis, SSLContext tls) {
    /** 10 s, without TLS. */
    public static final ConnectOptions DEFAULT = new ConnectOptions(10_000, null);

    public ConnectOptions {
        if (timeoutMillis < 1) {
            throw new IllegalArgumentException("timeoutMillis is " + timeoutMillis + ": use 1 or more");
        }
    }

    /** The same with TLS. */
    public ConnectOptions withTls(SSLContext context) {
        return new ConnectOptions(timeoutMillis, context);
    }

    /** The same with another timeout. */
    public ConnectOptions withTimeoutMillis(int millis) {
        return new ConnectOptions(millis, tls);
    }

    /**
     * Connects to HOST:PORT. With TLS the certificate must have the host's name.
     *
     * @throws IllegalArgumentException if the address is none
     */
    Channel connect(String address) throws IOException {
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
            return new SocketChannel(tls == null ? socket : encrypted(socket, host, port));
        } catch (IOException | RuntimeException error) {
            socket.close();
            if (error instanceof IOException) {
                throw new IOException("broker " + address + " cannot be reached: " + error.getMessage(), error);
            }
            throw error;
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

    private record SocketChannel(Socket socket) implements Channel {
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
            socket.close();
        }
    }
}
