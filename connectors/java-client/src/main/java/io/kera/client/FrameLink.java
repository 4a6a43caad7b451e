package io.kera.client;

import io.kera.client.FrameChannel.Frame;
import java.io.IOException;

/** Requests to one broker, answered in any order, each within its time. */
final class FrameLink extends BrokerLink<FrameLink.Request, FrameLink.Request> {
    /** Who waits for an answer. Told once, by a thread of the link. */
    interface Waiter {
        void answered(Frame frame);

        /** No answer comes. What was asked for may have been done. */
        void lost(IOException why);
    }

    record Request(int kind, byte[] header, byte[] body, long deadline, Waiter waiter) {}

    /** A link to HOST:PORT whose threads have a name that begins so. */
    FrameLink(String address, ConnectOptions options, String name) {
        super(address, options, name + "-" + address);
        start();
    }

    /**
     * Sends a request.
     *
     * @param deadline by {@link System#nanoTime}: the connection counts as lost if there is no answer by then
     */
    void ask(int kind, byte[] header, byte[] body, long deadline, Waiter waiter) {
        add(new Request(kind, header, body, deadline, waiter));
    }

    /** A control call. */
    void call(int method, byte[] request, int withinMillis, Waiter waiter) {
        byte[] header = new Wire.Writer().number(1, method).number(2, withinMillis).done();
        ask(FrameChannel.CALL, header, request, System.nanoTime() + withinMillis * 1_000_000L, waiter);
    }

    /** Gives the connection up if an answer is overdue. Called from time to time. */
    void watch(long now) {
        Line line = live();
        if (line != null && line.awaits(request -> request.deadline() - now < 0)) {
            line.lose(new IOException("it did not answer in time"));
        }
    }

    @Override
    void serve(Request request) {
        Line line;
        try {
            line = connected();
        } catch (IOException error) {
            request.waiter().lost(error);
            return;
        }
        if (request.kind() == FrameChannel.CALL && !line.takesCalls()) {
            request.waiter().lost(new IOException(
                    "broker " + address() + " takes no control calls as frames; update the broker"));
            return;
        }
        line.send(request.kind(), request.header(), request.body(), request);
    }

    @Override
    void answered(Request sent, Frame frame) {
        sent.waiter().answered(frame);
    }

    @Override
    void lost(Request sent, IOException why) {
        sent.waiter().lost(why);
    }

    @Override
    void dropped(Request left, IOException why) {
        left.waiter().lost(why);
    }
}
