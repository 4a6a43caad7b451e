package io.kera.flink;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.function.BiConsumer;
import org.apache.flink.connector.testutils.source.reader.TestingSplitEnumeratorContext;

/** The context of an enumerator of one reader, or of more: what a handler throws reaches the test, where Flink's own context loses it. */
final class DirectContext extends TestingSplitEnumeratorContext<LaneSplit> {
    private final List<Runnable> calls = new ArrayList<>();

    DirectContext() {
        this(1);
    }

    DirectContext(int readers) {
        super(readers);
    }

    @Override
    public <T> void callAsync(Callable<T> call, BiConsumer<T, Throwable> handler) {
        calls.add(() -> {
            T answer;
            try {
                answer = call.call();
            } catch (Exception error) {
                handler.accept(null, error);
                return;
            }
            handler.accept(answer, null);
        });
    }

    @Override
    public <T> void callAsync(Callable<T> call, BiConsumer<T, Throwable> handler, long delay, long period) {
        callAsync(call, handler);
    }

    /** Each of them once, also those of before. */
    void runCalls() {
        List.copyOf(calls).forEach(Runnable::run);
    }
}
