package io.kera.client;

import java.io.Serializable;
import java.time.Duration;
import java.util.Objects;

/**
 * Has brokers keep what a job has still to read, or tell of it when they delete that: each stream that it reads has a pin, which moves to
 * the positions that the job has stored last, such as those of a completed checkpoint. {@link PinKeeper} moves it. Immutable.
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
     * Pins of this name, of policy {@link Pin.Policy#WARN}. Each reader of each job, such as a source, needs a name of its own, and keeps it over
     * restarts.
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

    /** The same under another name. */
    public Pinning renamed(String wanted) {
        named(wanted);
        return new Pinning(wanted, policy, maxAge, maxBytes, isRequired, isDeletedAtEnd);
    }

    /** Retention keeps what the pin needs, within its bounds. The user needs the operation {@code alter-configs} on the streams. */
    public Pinning waiting() {
        return policy(Pin.Policy.WAIT);
    }

    /** What retention does about the pin. */
    public Pinning policy(Pin.Policy wanted) {
        return new Pinning(name, Objects.requireNonNull(wanted), maxAge, maxBytes, isRequired, isDeletedAtEnd);
    }

    /** So long after it was moved last it holds nothing back any more. Default: the brokers', a week. */
    public Pinning maxAge(Duration wanted) {
        return new Pinning(name, policy, Objects.requireNonNull(wanted), maxBytes, isRequired, isDeletedAtEnd);
    }

    /** It holds nothing back once that would be more bytes of a stream. Default: the brokers', 10 GiB. */
    public Pinning maxBytes(long wanted) {
        return new Pinning(name, policy, maxAge, wanted, isRequired, isDeletedAtEnd);
    }

    /**
     * Fails the job where a pin cannot be set for half a minute, or records are gone that it needs. Default: the log of the engine tells; with
     * Flink that of the JobManager.
     */
    public Pinning required() {
        return new Pinning(name, policy, maxAge, maxBytes, true, isDeletedAtEnd);
    }

    /** Deletes the pins of what has an end once all is read, with Flink once a completed checkpoint says so. Default: they stay. */
    public Pinning deletedAtEnd() {
        return new Pinning(name, policy, maxAge, maxBytes, isRequired, true);
    }

    /** The name of the pins. */
    public String name() {
        return name;
    }

    /** Whether a job fails whose pin cannot be set. */
    public boolean isRequired() {
        return isRequired;
    }

    /** Whether pins are deleted once all is read. */
    public boolean isDeletedAtEnd() {
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
