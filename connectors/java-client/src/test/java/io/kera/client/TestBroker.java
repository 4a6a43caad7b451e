package io.kera.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;

/** A broker of the program that {@code -Dkera.program} names, in a directory of its own. */
public final class TestBroker implements AutoCloseable {
    private final Path home;
    private List<String> flags;
    private Process process;
    private String address = "127.0.0.1:0";

    private TestBroker(Path home, List<String> flags) {
        this.home = home;
        this.flags = flags;
    }

    /** Starts one; the test is skipped where there is no program. */
    public static TestBroker start(String... flags) throws IOException {
        String program = program();
        Path home = Files.createTempDirectory("kera-java-test");
        TestBroker broker = new TestBroker(home, List.of(flags));
        broker.restart();
        Assumptions.assumeTrue(!program.isEmpty());
        return broker;
    }

    /** One that asks its clients who they are, by any mechanism, and knows users with this password. */
    public static TestBroker withUsers(String password, String... names) throws IOException, InterruptedException {
        return withUsers(password, List.of(), names);
    }

    /** The same with more flags. */
    public static TestBroker withUsers(String password, List<String> flags, String... names)
            throws IOException, InterruptedException {
        TestBroker broker = start();
        for (String name : names) {
            broker.run(password, "user", "create", name);
        }
        broker.kill();
        broker.flags = new ArrayList<>(flags);
        broker.flags.addAll(List.of("--auth-listeners", "native", "--auth-mechanisms", "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN"));
        broker.restart();
        return broker;
    }

    static String program() {
        String program = System.getProperty("kera.program", "");
        Assumptions.assumeTrue(!program.isEmpty(), "no broker: set -Dkera.program to the program kera");
        return program;
    }

    /** Starts the broker again, at the address that it had. */
    public void restart() throws IOException {
        List<String> words = new ArrayList<>(List.of(
                program(), "serve", "--listen", address, "--data-dir", home.resolve("data").toString(),
                "--http-listen", "off"));
        words.addAll(flags);
        process = new ProcessBuilder(words)
                .redirectError(ProcessBuilder.Redirect.appendTo(home.resolve("broker.log").toFile()))
                .start();
        BufferedReader said = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        for (String line; (line = said.readLine()) != null; ) {
            int at = line.indexOf("listening on ");
            if (at >= 0) {
                address = line.substring(at + 13).split("[ ,]")[0];
                return;
            }
        }
        throw new IOException("the broker did not start: " + Files.readString(home.resolve("broker.log")));
    }

    /** The end of its log, in one line; and whether it runs. */
    public String told() {
        String log;
        try {
            log = Files.readString(home.resolve("broker.log")).replaceAll("\\s+", " ");
        } catch (IOException error) {
            log = error.toString();
        }
        return (process.isAlive() ? "runs, " : "is gone, ") + log.substring(Math.max(0, log.length() - 1000));
    }

    /** HOST:PORT. */
    public String address() {
        return address;
    }

    /** Kills the broker, and waits until it is gone. */
    public void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    /** Runs a command of the program, which must succeed, with so much on its standard input. */
    public String run(String input, String... words) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(program()));
        command.addAll(List.of(words));
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.environment().put("KERA_BOOTSTRAP", address);
        Process child = builder.start();
        child.getOutputStream().write(input.getBytes(StandardCharsets.UTF_8));
        child.getOutputStream().close();
        String told = new String(child.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (!child.waitFor(60, TimeUnit.SECONDS) || child.exitValue() != 0) {
            throw new IOException(String.join(" ", words) + " failed: " + told);
        }
        return told;
    }

    @Override
    public void close() throws IOException {
        process.destroyForcibly();
        process.onExit().join();
        try (Stream<Path> files = Files.walk(home)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }
}
