//! What is counted: a piece of the data path each, on one thread, with everything it needs made
//! before the counting begins.

mod batches;
mod clients;
mod lanes;

/// A case.
pub(crate) struct Case {
    pub name: &'static str,
    /// What is done, for people.
    pub what: &'static str,
    /// What the count is per.
    pub unit: &'static str,
    /// How often the work is done.
    pub times: u64,
    /// Units in one time.
    pub units: u64,
    /// Makes what is needed, then does the work so many times within
    /// [`counted`](crate::counted::counted).
    pub run: fn(times: u64),
}

/// Records in the batches of [`batches`]; with values of 100 bytes that is 16 KiB.
const RECORDS: u64 = 150;

/// All cases.
pub(crate) const CASES: [Case; 9] = [
    Case {
        name: "encode",
        what: "150 records of 100 bytes into a batch, with its checksum",
        unit: "a record",
        times: 20,
        units: RECORDS,
        run: batches::encode,
    },
    Case {
        name: "decode",
        what: "a batch of 150 records of 100 bytes: its checksum, and every record",
        unit: "a record",
        times: 20,
        units: RECORDS,
        run: batches::decode,
    },
    Case {
        name: "append-1k",
        what: "1 KiB to a lane, and written to a file that takes no time",
        unit: "a batch",
        times: 200,
        units: 1,
        run: lanes::append_small,
    },
    Case {
        name: "append-16k",
        what: "the same with 16 KiB",
        unit: "a batch",
        times: 100,
        units: 1,
        run: lanes::append,
    },
    Case {
        name: "append-replicated",
        what: "1 KiB to a lane with three replicas, until all have it; links that take no time",
        unit: "a batch",
        times: 200,
        units: 1,
        run: lanes::replicated::append_small,
    },
    Case {
        name: "read",
        what: "64 KiB of a lane from memory, in batches of 16 KiB",
        unit: "a read",
        times: 100,
        units: 1,
        run: lanes::read,
    },
    Case {
        name: "send",
        what: "a record of 100 bytes through the producer, without a handle",
        unit: "a record",
        times: 20,
        units: RECORDS,
        run: clients::send,
    },
    Case {
        name: "append-delivery",
        what: "the same with a handle that is dropped",
        unit: "a record",
        times: 20,
        units: RECORDS,
        run: clients::append,
    },
    Case {
        name: "consume",
        what: "every record of a batch that the consumer has received",
        unit: "a record",
        times: 20,
        units: RECORDS,
        run: clients::consume,
    },
];
