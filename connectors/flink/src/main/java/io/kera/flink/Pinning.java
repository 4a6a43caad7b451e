package io.kera.flink;

import io.kera.client.Pin;
import io.kera.client.PinRequest;
import java.io.Serializable;
import java.time.Duration;
import java.util.Objects;

/**
 * Has brokers keep what a job needs to go on from its last completed checkpoint, or tell of it when they delete that: each stream of
 * the source has a pin, which each completed checkpoint moves to its positions. It outlives the job. Immutable.
 */
public final class Pinning implements Serializable {
    private static final long serialVersionUID = 1L;
    private final String name;
    private final Pin.Policy policy;
    /** Null: the brokers' bound. */
    private final Duration maxAge;
    /** Null: the brokers' bound. */
    private final Long maxBytes;
    private final boolean isRequired;
    private final boolean isDeletedAtEnd;

    private Pinning(String name, Pin.Policy policy, Duration maxAge, Long maxBytes, boolean isRequired, boolean isDeletedAtEnd) {
        this.name = name;
        this.policy = policy;
        this.maxAge = maxAge;
        this.maxBytes = maxBytes;
        this.isRequired = isRequired;
        this.isDeletedAtEnd = isDeletedAtEnd;
    }

    /**
     * Pins of this name, of policy {@link Pin.Policy#WARN}. Each source of each job needs a name of its own, and keeps it over restarts.
     *
     * @param name 1 to 200 bytes without blanks
     * @throws IllegalArgumentException if it is none
     */
    public static Pinning named(String name) {
        if (name.isEmpty() || name.chars().anyMatch(Character::isWhitespace)) {
            throw new IllegalArgumentException("a pin is named \"" + name + "\": use 1 to 200 bytes without blanks");
        }
        return new Pinning(name, Pin.Policy.WARN, null, null, false, false);
    }

    /** Retention keeps what the pin needs, within its bounds. The user needs the operation {@code alter-configs} on the streams. */
    public Pinning waiting() {
        return policy(Pin.Policy.WAIT);
    }

    /** What retention does about the pin. */
    public Pinning policy(Pin.Policy wanted) {
        return new Pinning(name, Objects.requireNonNull(wanted), maxAge, maxBytes, isRequired, isDeletedAtEnd);
    }

    /** So long after the last checkpoint it holds nothing back any more. Default: the brokers', a week. */
    public Pinning maxAge(Duration wanted) {
        return new Pinning(name, policy, Objects.requireNonNull(wanted), maxBytes, isRequired, isDeletedAtEnd);
    }

    /** It holds nothing back once that would be more bytes of a stream. Default: the brokers', 10 GiB. */
    public Pinning maxBytes(long wanted) {
        return new Pinning(name, policy, maxAge, wanted, isRequired, isDeletedAtEnd);
    }

    /**
     * Fails the job where a pin cannot be set for half a minute, or records are gone that the checkpoint needs. Default: the log of the
     * JobManager tells.
     */
    public Pinning required() {
        return new Pinning(name, policy, maxAge, maxBytes, true, isDeletedAtEnd);
    }

    /** Deletes the pins of a bounded source once a completed checkpoint says that all is read. Default: they stay. */
    public Pinning deletedAtEnd() {
        return new Pinning(name, policy, maxAge, maxBytes, isRequired, true);
    }

    String name() {
        return name;
    }

    boolean isRequired() {
        return isRequired;
    }

    boolean isDeletedAtEnd() {
        return isDeletedAtEnd;
    }

    /** With what is set here. */
    PinRequest request(PinRequest bare, String job) {
        PinRequest request = bare.withJob(job).withPolicy(policy);
        request = maxAge == null ? request : request.withMaxAge(maxAge);
        return maxBytes == null ? request : request.withMaxBytes(maxBytes);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Pinning that && name.equals(that.name) && policy == that.policy && Objects.equals(maxAge, that.maxAge)
                && Objects.equals(maxBytes, that.maxBytes) && isRequired == that.isRequired && isDeletedAtEnd == that.isDeletedAtEnd;
    }

    @Override
    public int hashCode() {
        return Objects.hash(name, policy, maxAge, maxBytes, isRequired, isDeletedAtEnd);
    }

    @Override
    public String toString() {
        return "pin " + name + " of policy " + policy;
    }
}
