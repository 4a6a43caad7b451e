package io.kera.client;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;

/** Brokers of the program that {@code -Dkera.program} names, that share an etcd. */
public final class TestCluster implements AutoCloseable {
    private static final int ATTEMPTS = 5;

    private final Path home;
    private final Process etcd;
    private final List<TestBroker> brokers = new ArrayList<>();

    private TestCluster(Path home, Process etcd) {
        this.home = home;
        this.etcd = etcd;
    }

    /** Starts so many brokers; the test is skipped, and says so, where there is no etcd. */
    public static TestCluster start(int brokers) throws Exception {
        return start(brokers, false);
    }

    /** The same where broker N, from 1 on, is in rack "rN". */
    public static TestCluster inRacks(int brokers) throws Exception {
        return start(brokers, true);
    }

    private static TestCluster start(int brokers, boolean inRacks) throws Exception {
        Path home = Files.createTempDirectory("kera-java-cluster");
        String[] store = new String[1];
        TestCluster cluster = new TestCluster(home, etcd(home, store));
        try {
            kera("cluster", "init", "--cluster", store[0]);
            for (int id = 1; id <= brokers; id++) {
                Path memory = Files.createDirectory(home.resolve("memory" + id));
                List<String> flags = new ArrayList<>(List.of("--cluster", store[0], "--broker-id", String.valueOf(id),
                        "--cluster-allow-same-host", "--replica-store-memory-bytes", "16MiB", "--replica-store-shared-dir",
                        memory.toString(), "--replication-listen", "127.0.0.1:0"));
                if (inRacks) {
                    flags.addAll(List.of("--cluster-rack", "r" + id));
                }
                cluster.brokers.add(TestBroker.start(flags.toArray(new String[0])));
            }
            return cluster;
        } catch (Throwable error) {
            cluster.close();
            throw error;
        }
    }

    private static void kera(String... words) throws Exception {
        List<String> command = new ArrayList<>(List.of(TestBroker.program()));
        command.addAll(List.of(words));
        Process child = new ProcessBuilder(command).redirectErrorStream(true).start();
        String told = new String(child.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (child.waitFor() != 0) {
            throw new IOException(String.join(" ", words) + " failed: " + told);
        }
    }

    /** An etcd that answers. Another process may take a port that was free: then with others. */
    private static Process etcd(Path home, String[] store) throws Exception {
        for (int attempt = 1;; attempt++) {
            String clients;
            String peers;
            try (ServerSocket one = new ServerSocket(0); ServerSocket other = new ServerSocket(0)) {
                clients = "127.0.0.1:" + one.getLocalPort();
                peers = "127.0.0.1:" + other.getLocalPort();
            }
            Path log = home.resolve("etcd" + attempt + ".log");
            Process etcd;
            try {
                etcd = new ProcessBuilder("etcd", "--name", "member", "--data-dir", home.resolve("etcd" + attempt).toString(),
                        "--unsafe-no-fsync", "--initial-cluster", "member=http://" + peers, "--listen-client-urls", "http://" + clients,
                        "--advertise-client-urls", "http://" + clients, "--listen-peer-urls", "http://" + peers,
                        "--initial-advertise-peer-urls", "http://" + peers)
                        .redirectErrorStream(true).redirectOutput(log.toFile()).start();
            } catch (IOException missing) {
                skip("etcd is not installed");
                throw missing;
            }
            store[0] = "etcd://" + clients;
            while (etcd.isAlive()) {
                if (Files.readString(log).contains("ready to serve client requests")) {
                    return etcd;
                }
                LockSupport.parkNanos(10_000_000);
            }
            if (attempt == ATTEMPTS) {
                throw new IOException("etcd did not start: " + Files.readString(log));
            }
        }
    }

    /** Ends the test, and says so where the sums are made. */
    private static void skip(String why) throws IOException {
        String told = "SKIPPED: tests of clusters in Java: " + why + "\n";
        System.err.print("!!! " + told);
        String file = System.getenv("KERA_SKIP_FILE");
        if (file != null) {
            Files.writeString(Path.of(file), told, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }
        Assumptions.abort(why);
    }

    /** HOST:PORT of each broker. */
    public List<String> addresses() {
        return brokers.stream().map(TestBroker::address).toList();
    }

    /** Creates a stream, once as many brokers are known as it needs. */
    public void createStream(String name, String... flags) throws Exception {
        List<String> words = new ArrayList<>(List.of("stream", "create", name));
        words.addAll(List.of(flags));
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (true) {
            try {
                any().run("", words.toArray(new String[0]));
                return;
            } catch (IOException error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
            }
        }
    }

    /** The rack of the broker at HOST:PORT, of a cluster in racks. */
    public String rack(String address) {
        return "r" + (addresses().indexOf(address) + 1);
    }

    /** The broker at HOST:PORT. */
    public TestBroker at(String address) {
        return brokers.stream().filter(broker -> broker.address().equals(address)).findFirst().orElseThrow();
    }

    /** One of them. */
    public TestBroker any() {
        return brokers.get(0);
    }

    @Override
    public void close() throws IOException {
        for (TestBroker broker : brokers) {
            broker.close();
        }
        etcd.destroyForcibly();
        etcd.onExit().join();
        try (Stream<Path> files = Files.walk(home)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }
}
