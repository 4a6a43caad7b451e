package kera;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after another in one process, where their scripts start one for each: a JSON
 * request per line with class, words and standard input, an answer per line with status and what the tool wrote.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** What the tool that runs asked to be done at the end of its process. */
    private static final List<Runnable> AT_END = new ArrayList<>();

    /** The first status with which the tool that runs ended its process; none yet if null. */
    private static Integer status;

    /** Thrown where a tool ends its process. No tool catches it and goes on: it catches exceptions at most. */
    private static final class Ended extends Error {
        Ended() {
            super("the tool ended its process", null, false, false);
        }
    }

    private static void end(int with, String why) {
        if (status == null) {
            status = with;
        }
        throw new Ended();
    }

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure(Tools::end);
        Exit.setHaltProcedure(Tools::end);
        Exit.setShutdownHookAdder((name, work) -> AT_END.add(work));
        BufferedReader requests =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = System.out;
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            answers.flush();
        }
        // What a tool leaves running must not keep the process.
        Runtime.getRuntime().halt(0);
    }

    private static ObjectNode run(JsonNode request) throws Exception {
        List<String> words = new ArrayList<>();
        request.get("words").forEach(word -> words.add(word.asText()));
        byte[] input = request.get("input").asText().getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream errors = System.err;
        System.setIn(new ByteArrayInputStream(input));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        status = null;
        try {
            Class.forName(request.get("class").asText())
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) words.toArray(new String[0]));
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Ended)) {
                failure.getCause().printStackTrace();
                status = 1;
            }
        }
        for (Runnable work : AT_END) {
            work.run();
        }
        AT_END.clear();
        System.out.flush();
        System.err.flush();
        System.setErr(errors);
        ObjectNode answer = JSON.createObjectNode();
        answer.put("status", status == null ? 0 : status);
        answer.put("out", out.toString(StandardCharsets.UTF_8));
        answer.put("err", err.toString(StandardCharsets.UTF_8));
        return answer;
    }

    private Tools() {}
}
