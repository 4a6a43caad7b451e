package io.kera.client;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Moves the pins of the streams that a job reads, on a thread of its own: brokers that are away hold up neither checkpoints nor reading.
 * Of positions that come faster than pins are moved only the newest count. Thread-safe.
 */
public final class PinKeeper implements AutoCloseable {
    /** How brokers are reached. */
    @FunctionalInterface
    public interface Opener {
        /** Asked for each move: files of certificates and passwords may have changed. */
        Admin open() throws IOException;
    }

    /** Hears why a pin does not stand where it should. */
    @FunctionalInterface
    public interface Listener {
        /**
         * A pin was not set, or is lost. Called on the thread that moves pins.
         *
         * @param isNews false if the same was told of the stream before, and no move was good since
         */
        void failed(String why, boolean isNews);
    }

    /** What a pin is for. */
    public enum Needs {
        /** Lanes that were added meanwhile are read from their beginning. */
        ALL_LANES,
        /** Lanes that no position names are not read. */
        NAMED_LANES
    }

    private record LaneId(int streamlet, int lane) {}

    /** A pin is tried to be set for so long. */
    private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(30);
    private static final long PAUSE_MILLIS = 200;
    /** A pin whose positions stay is set again only so often, so that its age begins anew. */
    private static final long AGAIN_NANOS = TimeUnit.MINUTES.toNanos(1);
    /** Code points of a job's name. */
    private static final int LONGEST_JOB = 128;
    /** What is still to be done when the source ends is waited for. */
    private static final long CLOSE_SECONDS = 5;

    /** What a stream's pin is to become; no positions: it is to be deleted. */
    private record Target(byte[] id, List<LanePosition> positions) {}

    /** What was pinned, and when. */
    private record Pinned(List<LanePosition> positions, long atNanos) {}

    private final Pinning pinning;
    private final Opener brokers;
    private final Needs needs;
    private final String job;
    private final String what;
    private final Listener listener;
    private final Map<String, Target> newest = new LinkedHashMap<>();
    /** The thread's own. */
    private final Map<String, Pinned> pinned = new HashMap<>();
    /** What was told last of each stream, so that it is not told at each checkpoint. The thread's own. */
    private final Map<String, String> told = new HashMap<>();
    private final ExecutorService thread;
    private volatile boolean closing;

    /**
     * Moves nothing yet.
     *
     * @param job its name, for people
     * @param what needs the records, as in "the last checkpoint"
     */
    public PinKeeper(Opener brokers, Pinning pinning, Needs needs, String job, String what, Listener listener) {
        this.brokers = brokers;
        this.pinning = pinning;
        this.needs = needs;
        this.job = told(job);
        this.what = what;
        this.listener = listener;
        thread = Executors.newSingleThreadExecutor(work -> {
            Thread made = new Thread(work, "kera-pins");
            made.setDaemon(true);
            return made;
        });
    }

    /** As brokers take it: 512 bytes at most, in one line. A query's job has the query as its name. */
    private static String told(String job) {
        return job.replaceAll("\\p{Cntrl}+", " ").codePoints().limit(LONGEST_JOB)
                .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
    }

    /**
     * A stream's records are needed from these positions on. Returns at once.
     *
     * @param id the stream's; empty: not known
     * @param positions of the lanes that are known
     */
    public void move(String stream, byte[] id, List<LanePosition> positions) {
        become(stream, new Target(id, positions));
    }

    /** Nothing of a stream is needed any more. Returns at once. */
    public void delete(String stream) {
        become(stream, new Target(null, null));
    }

    /**
     * Waits until what was asked for before is done, or has failed: half a minute for each stream at most.
     *
     * @throws InterruptedIOException if the thread is interrupted meanwhile
     */
    public void await() throws InterruptedIOException {
        CountDownLatch done = new CountDownLatch(1);
        synchronized (newest) {
            if (closing) {
                return;
            }
            thread.execute(done::countDown);
        }
        try {
            done.await();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while pin " + pinning.name() + " was set");
        }
    }

    private void become(String stream, Target target) {
        synchronized (newest) {
            if (!closing && newest.put(stream, target) == null) {
                thread.execute(() -> keep(stream));
            }
        }
    }

    private Target take(String stream) {
        synchronized (newest) {
            return newest.remove(stream);
        }
    }

    private void keep(String stream) {
        long until = System.nanoTime() + PATIENCE_NANOS;
        Target target = take(stream);
        try (Admin admin = brokers.open()) {
            while (target != null) {
                try {
                    become(admin, stream, target);
                    told.remove(stream);
                    return;
                } catch (LostException | LoginException error) {
                    throw error;
                } catch (IOException error) {
                    boolean isFinal = error instanceof KeraException refused && !ErrorCodes.isRetryable(refused.code());
                    if (isFinal || closing || System.nanoTime() - until > 0) {
                        throw error;
                    }
                }
                Thread.sleep(PAUSE_MILLIS);
                Target newer = take(stream);
                target = newer == null ? target : newer;
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        } catch (IOException | RuntimeException error) {
            tell(stream, error);
        }
    }

    private void tell(String stream, Exception error) {
        String text = error instanceof LostException ? error.getMessage()
                : "pin " + pinning.name() + " of stream " + stream + " does not have the positions of " + what + ": " + error.getMessage();
        listener.failed(text, !text.equals(told.put(stream, text)));
    }

    private void become(Admin admin, String stream, Target target) throws IOException {
        if (target.positions() == null) {
            delete(admin, stream);
            return;
        }
        Pinned before = pinned.get(stream);
        long now = System.nanoTime();
        if (before != null && before.positions().equals(target.positions()) && now - before.atNanos() < AGAIN_NANOS) {
            return;
        }
        // Of an attempt that fails nobody knows what it did.
        pinned.remove(stream);
        Pin pin;
        LanePosition gone = null;
        try {
            pin = create(admin, stream, target.id(), target.positions());
        } catch (KeraException refused) {
            if (refused.code() != ErrorCodes.INVALID_ARGUMENT) {
                throw refused;
            }
            // Lanes were added, or begin above their positions.
            List<LanePosition> stored = stored(admin, stream, target.positions());
            if (stored.equals(target.positions())) {
                throw refused;
            }
            gone = gone(target.positions(), stored);
            pin = create(admin, stream, target.id(), stored);
        }
        if (gone == null && pin.lost().isPresent()) {
            Pin.Loss loss = pin.lost().get();
            gone = new LanePosition(loss.streamlet(), loss.lane(), loss.ordinal());
        }
        if (gone != null) {
            throw new LostException("records are gone that " + what + " needs: lane " + stream + ":" + gone.streamlet() + "/"
                    + gone.lane() + " lost records from ordinal " + gone.ordinal() + " on before pin " + pinning.name()
                    + " was set; lengthen the stream's retention, or the pin's bounds");
        }
        pinned.put(stream, new Pinned(target.positions(), now));
    }

    /** What is needed is deleted. */
    private static final class LostException extends IOException {
        private static final long serialVersionUID = 1L;

        LostException(String text) {
            super(text);
        }
    }

    private Pin create(Admin admin, String stream, byte[] id, List<LanePosition> positions) throws IOException {
        PinRequest request = PinRequest.of(stream, pinning.name(), positions);
        return admin.createPin(pinning.request(id.length == 0 ? request : request.withStreamId(id), job));
    }

    /** The positions as far as they are stored, and those of lanes that are not known. */
    private List<LanePosition> stored(Admin admin, String stream, List<LanePosition> positions) throws IOException {
        Map<LaneId, Long> known = new LinkedHashMap<>();
        positions.forEach(each -> known.put(new LaneId(each.streamlet(), each.lane()), each.ordinal()));
        for (Admin.LaneBounds lane : admin.bounds(stream)) {
            long other = needs == Needs.ALL_LANES ? lane.start() : lane.head();
            known.merge(new LaneId(lane.streamlet(), lane.lane()), other, (own, any) -> Math.max(own, lane.start()));
        }
        List<LanePosition> all = new ArrayList<>();
        known.forEach((lane, ordinal) -> all.add(new LanePosition(lane.streamlet(), lane.lane(), ordinal)));
        return all;
    }

    private static LanePosition gone(List<LanePosition> wanted, List<LanePosition> stored) {
        // Those that were wanted come first.
        for (int n = 0; n < wanted.size(); n++) {
            if (stored.get(n).ordinal() > wanted.get(n).ordinal()) {
                return wanted.get(n);
            }
        }
        return null;
    }

    private void delete(Admin admin, String stream) throws IOException {
        pinned.remove(stream);
        try {
            admin.deletePin(stream, pinning.name());
        } catch (KeraException error) {
            if (error.code() != ErrorCodes.INVALID_ARGUMENT) {
                throw error;
            }
            // There is none, perhaps since an earlier attempt.
        }
    }

    /** Waits a little, 5 s, for what is still to be done: the positions of a savepoint with which a job ends. */
    @Override
    public void close() {
        synchronized (newest) {
            closing = true;
            thread.shutdown();
        }
        try {
            if (!thread.awaitTermination(CLOSE_SECONDS, TimeUnit.SECONDS)) {
                thread.shutdownNow();
            }
        } catch (InterruptedException error) {
            thread.shutdownNow();
            Thread.currentThread().interrupt();
        }
    }
}
