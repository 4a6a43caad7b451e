package io.kera.client;

import java.nio.ByteBuffer;

/**
 * Names a transaction. Whoever has it can end the transaction if it is prepared, from any process, and ask how it ended:
 * see {@link Transactions}.
 *
 * @param transactionalId the transactional id
 * @param producer the id's producer id
 * @param epoch the producer's epoch
 * @param number which of the id's transactions it is
 */
public record TransactionHandle(String transactionalId, long producer, short epoch, long number) {
    /** As bytes, which stay readable by later versions. */
    public byte[] encoded() {
        return new Wire.Writer().text(1, transactionalId).number(2, producer).number(3, epoch).number(4, number).done();
    }

    /** The handle of {@link #encoded}. */
    public static TransactionHandle decoded(byte[] bytes) {
        return read(ByteBuffer.wrap(bytes));
    }

    static TransactionHandle read(ByteBuffer in) {
        String id = "";
        long[] numbers = new long[5];
        Wire.Reader fields = new Wire.Reader(in);
        for (int field; (field = fields.next()) != 0; ) {
            switch (field) {
                case 1 -> id = fields.text();
                case 2, 3, 4 -> numbers[field] = fields.varint();
                default -> fields.skip();
            }
        }
        return new TransactionHandle(id, numbers[2], (short) numbers[3], numbers[4]);
    }
}
