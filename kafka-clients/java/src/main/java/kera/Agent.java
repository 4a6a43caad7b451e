package kera;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.protocol.Errors;

/** Does with the Java client what the test asks for: one JSON request per line, one answer per line. */
public final class Agent {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers =
                new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // Nothing that a library prints may get between the answers.
        System.setOut(System.err);
        BufferedReader requests =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Admins admins = new Admins();
        Consumers consumers = new Consumers();
        Producers producers = new Producers(consumers);
        ShareConsumers shares = new ShareConsumers();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode request = JSON.readTree(line);
                String op = request.get("op").asText();
                JsonNode result = admins.handle(op, request);
                if (result == null) {
                    result = producers.handle(op, request);
                }
                if (result == null) {
                    result = consumers.handle(op, request);
                }
                if (result == null) {
                    result = shares.handle(op, request);
                }
                if (result == null) {
                    answer.put("unsupported", op);
                } else {
                    answer.set("ok", result);
                }
            } catch (Throwable failure) {
                describe(failure, answer);
            }
            answers.println(JSON.writeValueAsString(answer));
        }
        // Clients that a test left open must not keep the process.
        Runtime.getRuntime().halt(0);
    }

    /** Puts Kafka's name for a failure into an answer. */
    static void describe(Throwable failure, ObjectNode answer) {
        Throwable cause = failure;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Errors error = Errors.forException(cause);
        String name = error == Errors.UNKNOWN_SERVER_ERROR
                ? "CLIENT:" + cause.getClass().getSimpleName()
                : error.name();
        answer.put("error", name);
        answer.put("message", String.valueOf(cause));
    }

    private Agent() {}
}
