package io.kera.client;

/** Where a key belongs: Kafka's hash, and how a stream's lanes are spread over its streamlets. */
public final class Partitions {
    private static final int SEED = 0x9747b28c;
    private static final int FACTOR = 0x5bd1e995;

    private Partitions() {}

    /** Kafka's murmur2 of a key without its sign bit: what lanes are chosen by. */
    public static int keyHash(byte[] key) {
        int hash = SEED ^ key.length;
        int words = key.length & ~3;
        for (int at = 0; at < words; at += 4) {
            int word = (key[at] & 0xff) | (key[at + 1] & 0xff) << 8 | (key[at + 2] & 0xff) << 16 | key[at + 3] << 24;
            word *= FACTOR;
            word ^= word >>> 24;
            hash = hash * FACTOR ^ word * FACTOR;
        }
        if (words < key.length) {
            for (int at = words; at < key.length; at++) {
                hash ^= (key[at] & 0xff) << 8 * (at - words);
            }
            hash *= FACTOR;
        }
        hash ^= hash >>> 13;
        hash *= FACTOR;
        return (hash ^ hash >>> 15) & 0x7fffffff;
    }

    /** The partition of a key among so many lanes of all streamlets. */
    public static int of(byte[] key, int partitions) {
        return keyHash(key) % partitions;
    }

    /** The streamlet of a partition, in a stream of so many streamlets. */
    public static int streamlet(int partition, int streamlets) {
        return partition % streamlets;
    }

    /** How many of a stream's lanes are a streamlet's. */
    static int lanes(int streamlet, int streamlets, int partitions) {
        return partitions / streamlets + (streamlet < partitions % streamlets ? 1 : 0);
    }

    /** A partition's lane within its streamlet. */
    public static int lane(int partition, int streamlets) {
        return partition / streamlets;
    }
}
