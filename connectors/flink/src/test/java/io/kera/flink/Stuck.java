package io.kera.flink;

import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;

/**
 * A test that waits without end fails, and its error says in one line how far it is and what Kera's threads wait for. Flink's
 * own waits do not end when they are interrupted.
 */
final class Stuck {
    /** Less than a test may take. */
    private static final Duration WITHIN = Duration.ofSeconds(200);
    private static final int FRAMES = 4;

    /** What a test does. */
    interface Body {
        void run() throws Exception;
    }

    /** How far it is. */
    interface State {
        String tell() throws Exception;
    }

    private Stuck() {}

    /** @throws AssertionError if it takes too long */
    static void watch(State state, Body body) throws Exception {
        CompletableFuture<Void> done = new CompletableFuture<>();
        Thread test = new Thread(() -> run(body, done), "test");
        test.setDaemon(true);
        test.start();
        try {
            done.get(WITHIN.toMillis(), TimeUnit.MILLISECONDS);
        } catch (TimeoutException error) {
            throw new AssertionError("stuck: " + told(state) + "; threads: " + threads(test), error);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw (Error) error.getCause();
        }
    }

    private static void run(Body body, CompletableFuture<Void> done) {
        try {
            body.run();
            done.complete(null);
        } catch (Throwable error) {
            done.completeExceptionally(error);
        }
    }

    private static String told(State state) {
        try {
            return state.tell();
        } catch (Exception error) {
            return error.toString();
        }
    }

    private static String threads(Thread test) {
        return Thread.getAllStackTraces().entrySet().stream()
                .filter(each -> each.getKey() == test || isOurs(each.getValue()))
                .map(Stuck::thread)
                .distinct()
                .collect(Collectors.joining(" | "));
    }

    private static boolean isOurs(StackTraceElement[] stack) {
        return Arrays.stream(stack).anyMatch(frame -> frame.getClassName().startsWith("io.kera."));
    }

    private static String thread(Map.Entry<Thread, StackTraceElement[]> each) {
        String top = Arrays.stream(each.getValue()).limit(FRAMES).map(Stuck::frame).collect(Collectors.joining("<"));
        String ours = Arrays.stream(each.getValue())
                .filter(frame -> frame.getClassName().startsWith("io.kera."))
                .limit(FRAMES)
                .map(Stuck::frame)
                .collect(Collectors.joining("<"));
        return each.getKey().getName().split(" ")[0] + " " + top + " of " + ours;
    }

    private static String frame(StackTraceElement frame) {
        String type = frame.getClassName();
        return type.substring(type.lastIndexOf('.') + 1) + "." + frame.getMethodName() + ":" + frame.getLineNumber();
    }
}
