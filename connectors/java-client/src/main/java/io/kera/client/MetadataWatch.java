package io.kera.client;

import java.io.IOException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/** Looks a stream up in the background, when somebody wants to know who owns what now. */
final class MetadataWatch {
    /** Pause between looks. */
    private static final long PAUSE_MILLIS = 20;
    /** A login that is refused is not tried again sooner. */
    private static final long REFUSED_PAUSE_MILLIS = 1000;

    private final String stream;
    private final Cluster cluster;
    private final Runnable told;
    private final ExecutorService thread;
    private final AtomicReference<StreamInfo> fresh = new AtomicReference<>();
    private volatile StreamInfo latest;
    private volatile KeraException gone;
    private volatile KeraException hidden;
    private boolean looking;

    /** Calls {@code told} whenever there is something new to {@link #take}, by a thread of that name. */
    MetadataWatch(String stream, Cluster cluster, String name, Runnable told) {
        this.stream = stream;
        this.cluster = cluster;
        this.told = told;
        thread = Executors.newSingleThreadExecutor(work -> {
            Thread made = new Thread(work, name);
            made.setDaemon(true);
            return made;
        });
    }

    /** Asks for a look, unless one is under way. */
    synchronized void want() {
        if (!looking) {
            looking = true;
            submit(this::look);
        }
    }

    /** Asks for a look; one that is under way is not taken for it. */
    synchronized void wantNew() {
        fresh.set(null);
        looking = true;
        submit(this::look);
    }

    private void look() {
        try {
            StreamInfo info = cluster.streamOfAny(stream);
            hidden = null;
            latest = info;
            fresh.set(info);
            told.run();
            TimeUnit.MILLISECONDS.sleep(PAUSE_MILLIS);
        } catch (IOException error) {
            if (error instanceof KeraException refused) {
                switch (refused.code()) {
                    case ErrorCodes.UNKNOWN_STREAM -> gone = refused;
                    case ErrorCodes.NOT_AUTHORIZED -> hidden = refused;
                    default -> { }
                }
                told.run();
            }
            pauseAfter(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        } finally {
            synchronized (this) {
                looking = false;
            }
        }
    }

    private static void pauseAfter(IOException error) {
        try {
            TimeUnit.MILLISECONDS.sleep(error instanceof LoginException ? REFUSED_PAUSE_MILLIS : PAUSE_MILLIS * 5);
        } catch (InterruptedException closed) {
            Thread.currentThread().interrupt();
        }
    }

    /** Asks for a new producer id; null is handed over if none can be had. */
    void renew(Consumer<Cluster.ProducerId> to) {
        submit(() -> {
            Cluster.ProducerId id = null;
            try {
                id = cluster.newProducer(stream);
            } catch (IOException error) {
                // It is asked for again.
                pauseAfter(error);
            }
            to.accept(id);
        });
    }

    private void submit(Runnable work) {
        try {
            thread.execute(work);
        } catch (RejectedExecutionException error) {
            // It is closed.
        }
    }

    /** What was found since the last call; null: nothing. */
    StreamInfo take() {
        return fresh.getAndSet(null);
    }

    /** What was found last; null: nothing yet. */
    StreamInfo latest() {
        return latest;
    }

    /** Why there is no such stream any more; null: there is one, for all that is known. */
    KeraException gone() {
        return gone;
    }

    /** Why the user may not see the stream any more; null: it may, for all that is known. To such a user owners say that there is none. */
    KeraException hidden() {
        return hidden;
    }

    /** An owner has served the user. */
    void isSeen() {
        hidden = null;
    }

    void close() {
        thread.shutdownNow();
        cluster.close();
    }
}
