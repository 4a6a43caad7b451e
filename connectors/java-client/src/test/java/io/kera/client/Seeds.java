package io.kera.client;

import java.util.function.LongConsumer;

/** Games that are played from seeds, from 0 on: each seed makes one game, always the same. */
public final class Seeds {
    private Seeds() {}

    /** Plays them all, and says which one failed. */
    public static void play(int seeds, LongConsumer game) {
        for (long seed = 0; seed < seeds; seed++) {
            try {
                game.accept(seed);
            } catch (AssertionError error) {
                throw new AssertionError("seed " + seed + ": " + error.getMessage(), error);
            }
        }
    }

    /** Plays until one fails, as one must that has a planted defect. */
    public static void find(Object planted, int seeds, LongConsumer game) {
        for (long seed = 0; seed < seeds; seed++) {
            try {
                game.accept(seed);
            } catch (AssertionError error) {
                return;
            }
        }
        throw new AssertionError(planted + " was not found");
    }
}
