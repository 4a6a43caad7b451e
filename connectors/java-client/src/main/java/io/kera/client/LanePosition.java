package io.kera.client;

/** An ordinal of a lane. */
public record LanePosition(int streamlet, int lane, long ordinal) {}
