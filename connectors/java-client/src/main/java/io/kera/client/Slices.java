package io.kera.client;

import java.util.List;

/**
 * Slices of a lane: its keys in 64 parts, which the members of a group with {@link ConsumerOptions.Order#KEY} share. A key is in the same
 * slice of every lane, however many there are.
 */
public final class Slices {
    /** How many slices a lane has. */
    public static final int COUNT = 64;
    /** All of them, as groups of other orders have them. */
    public static final Slices ALL = new Slices(-1, null);

    private static final int SHIFT = 25;

    private final long bits;
    /** By slice: from which ordinal on it is meant; null: from any. */
    private final long[] starts;

    private Slices(long bits, long[] starts) {
        this.bits = bits;
        this.starts = starts;
    }

    /**
     * Those of a lease.
     *
     * @param bits bit n stands for slice n
     * @param start of the lease
     * @param above how far above its start each slice begins, from the lowest slice up; empty: all begin there
     */
    static Slices leased(long bits, long start, List<Long> above) {
        if (above.isEmpty()) {
            return new Slices(bits, null);
        }
        long[] starts = new long[COUNT];
        int next = 0;
        for (int slice = 0; slice < COUNT; slice++) {
            boolean isLater = (bits >>> slice & 1) != 0 && next < above.size();
            starts[slice] = isLater ? start + above.get(next++) : start;
        }
        return new Slices(bits, starts);
    }

    /**
     * Some of them.
     *
     * @param bits bit n stands for slice n
     */
    public static Slices ofBits(long bits) {
        return bits == ALL.bits ? ALL : new Slices(bits, null);
    }

    /**
     * One of several shares of all slices, which are as even as can be.
     *
     * @param share from 0 on
     * @param shares how many there are, at most {@link #COUNT}
     */
    public static Slices share(int share, int shares) {
        long bits = 0;
        for (int slice = COUNT * share / shares; slice < COUNT * (share + 1) / shares; slice++) {
            bits |= 1L << slice;
        }
        return ofBits(bits);
    }

    /** How many there are. */
    public int count() {
        return Long.bitCount(bits);
    }

    /** The slice of a record: by its key, or by its ordinal if that is null. */
    public static int of(byte[] key, long ordinal) {
        return key == null ? (int) (ordinal % COUNT) : Partitions.keyHash(key) >>> SHIFT;
    }

    /** Whether a slice is one of them. */
    public boolean contains(int slice) {
        return (bits >>> slice & 1) != 0;
    }

    /** Bit n stands for slice n. */
    public long bits() {
        return bits;
    }

    /** True if these are some of a lane's keys, and not all its records. */
    public boolean areShared() {
        return this != ALL;
    }

    /** Whether a record is of one of them, and not below where that begins: by its key, or by its ordinal if that is null. */
    public boolean contains(byte[] key, long ordinal) {
        if (this == ALL) {
            return true;
        }
        int slice = of(key, ordinal);
        return contains(slice) && (starts == null || ordinal >= starts[slice]);
    }

    @Override
    public String toString() {
        return this == ALL ? "all" : Long.toBinaryString(bits);
    }
}
