package io.kera.client;

/**
 * Progress within a lease.
 *
 * @param next everything of the lease below is processed; {@link #NONE}: nothing new
 * @param release the lease ends; what is not processed goes to another member
 */
record LeaseCommit(long lease, long next, boolean release) {
    static final long NONE = -1;
}
