//! What a primary, or who recovers after one, asks of a backup: about one request for 10^5 writes.

use bytes::Bytes;
pub use kera_log_segments::check::{Checked, Progress};
use kera_log_segments::scan::Scanned;
pub use kera_log_segments::window::Place;
use kera_protocol::ids::{Epoch, Ordinal, StreamId};

use super::lists::{ChangedList, KnownList};
use crate::ids::{BrokerId, BufferKey, CopyId, Incarnation, ProcessId, StreamletKey};

/// A request. Each may be repeated: the second time it finds done what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Who are you, and how much room is left? Answered by [`Reply::Description`].
    Describe,
    /// Reserves buffers for `bytes` bytes from `address` on. Address 0 makes the copy; any other needs
    /// it to exist. Answered by [`Reply::Opened`], or refused at once when there is no room. Asked
    /// again by the same primary for what it has open, it gives the same buffers. A buffer never
    /// spans segments.
    Open {
        /// The copy.
        copy: CopyId,
        /// The incarnation that the group's record names; any other refuses.
        incarnation: Incarnation,
        /// Who will write; a link of another primary cannot reach the buffer.
        primary: BrokerId,
        /// Bytes of each segment.
        segment_size: u32,
        /// Segments the group may have.
        segments: u32,
        /// The first address that needs a buffer.
        address: u64,
        /// Bytes asked from there on, within the segment; the backup may reserve more.
        bytes: u32,
    },
    /// Writes to disk what lies below `length` and checks that the copy's valid scan reaches it.
    /// Answered by [`Reply::Flushed`], or refused as [`Refusal::Short`].
    Flush {
        /// The copy.
        copy: CopyId,
        /// The bytes that count, from the group's start.
        length: u64,
        /// The group is closed at `length`: nobody writes the copy again, and once it is on disk its
        /// memory is given back. Otherwise it stays as it is.
        closed: bool,
    },
    /// Brings the bytes of several open replicas to the disk, for acknowledgements that wait for it:
    /// each up to an address below which its primary has seen everything placed. Only for replicas
    /// that were opened in the life of the disk. No bytes are looked at and no mark is stored.
    /// Answered by [`Reply::FlushedRound`], once they are flushed.
    FlushRound {
        /// The replicas, and where each ends.
        copies: Vec<(CopyId, u64)>,
    },
    /// Ends the right of all epochs below `epoch` to open or write copies of the streamlet,
    /// irrevocably, remembered as durably as copies are, even where there is no copy; only then
    /// reads how far the named copies' valid scans reach. Answered by [`Reply::Sealed`], in the
    /// order of `copies`; refused as [`Refusal::Sealed`] if a higher epoch has sealed.
    Seal(Seal),
    /// Fills a copy; makes it if it is not there and `address` is 0. Only for `epoch`, the highest
    /// that has sealed the streamlet here. `bytes` lie within one segment. Answered by [`Reply::Done`].
    Complete {
        /// The copy.
        copy: CopyId,
        /// The epoch that sealed.
        epoch: Epoch,
        /// Bytes of each segment.
        segment_size: u32,
        /// Segments the group may have.
        segments: u32,
        /// Where in the group the bytes go.
        address: u64,
        /// What to write.
        bytes: Bytes,
    },
    /// Reads a copy's bytes, whatever they are; what was never written is zeros, and bytes end early
    /// only where the group's segments do. Answered by [`Reply::Bytes`].
    Read {
        /// The copy.
        copy: CopyId,
        /// From where in the group.
        address: u64,
        /// How many bytes, at most 4 MiB.
        len: u32,
    },
    /// Looks at a stretch of a closed group's bytes again: whether each batch is whole, and a digest to
    /// compare copies by. Answered by [`Reply::Checked`].
    Check {
        /// The copy.
        copy: CopyId,
        /// Where the last stretch ended; the default to begin.
        from: Progress,
        /// About so many bytes, at least a batch.
        bytes: u32,
        /// Where the group's close says that it ends.
        end: Place,
    },
    /// Forgets a copy and gives back its memory. Only the owner asks for it, of a copy that no record
    /// names here: its group is gone, or is closed without it, which is final. Answered by
    /// [`Reply::Done`], also if it is gone.
    Free {
        /// The copy.
        copy: CopyId,
        /// The streamlet's epoch, as the asker knows it: below the highest seal, or the copy's own
        /// epoch, it is refused.
        epoch: Epoch,
        /// The version that was listed; in another, which was built since, the copy stays and the
        /// request is refused as [`Refusal::Invalid`]. `None` frees whatever is there.
        version: Option<CopyVersion>,
    },
    /// A stream is gone, and its id is never given again: frees all its copies, and forgets its
    /// seals. Answered by [`Reply::Done`].
    Forget {
        /// The stream.
        stream: StreamId,
    },
    /// Which copies are there? Answered by [`Reply::Copies`].
    List {
        /// Of one streamlet only.
        streamlet: Option<StreamletKey>,
    },
    /// Which copies of some streamlets are there, where that is not what the asker knows? Answered by
    /// [`Reply::Changed`].
    ListChanged {
        /// The streamlets, at most [`MAX_LISTS`].
        known: Vec<KnownList>,
    },
}

/// A streamlet to be sealed, and the copies to be read afterwards with the incarnation that each
/// record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// The new owner's epoch.
    pub epoch: Epoch,
    /// What to read.
    pub copies: Vec<(CopyId, Incarnation)>,
}

impl Request {
    /// Ends the right of earlier epochs, and reads nothing.
    pub fn seal(streamlet: StreamletKey, epoch: Epoch) -> Self {
        Self::Seal(Seal {
            streamlet,
            epoch,
            copies: Vec::new(),
        })
    }

    /// Brings a copy of a group to disk that is closed at `length`.
    pub fn flush_closed(copy: CopyId, length: u64) -> Self {
        Self::Flush {
            copy,
            length,
            closed: true,
        }
    }

    /// Frees a copy, as its owner under `epoch`.
    pub fn free(copy: CopyId, epoch: Epoch, version: Option<CopyVersion>) -> Self {
        Self::Free {
            copy,
            epoch,
            version,
        }
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Request::Describe`].
    Description(Description),
    /// To [`Request::Open`].
    Opened(Opened),
    /// To [`Request::Flush`].
    Flushed {
        /// Where the copy's valid scan ends; 0 if nothing of it is whole.
        length: u64,
        /// One above the last record's ordinal there.
        end_ordinal: Ordinal,
    },
    /// To [`Request::FlushRound`], in the order of its replicas. One that is refused takes no part in
    /// later rounds either.
    FlushedRound(Vec<Result<(), Refusal>>),
    /// To [`Request::Seal`].
    Sealed(Vec<SealedCopy>),
    /// To [`Request::Read`].
    Bytes(Bytes),
    /// To [`Request::Check`].
    Checked(Checked),
    /// To [`Request::List`].
    Copies(Vec<CopyInfo>),
    /// To [`Request::ListChanged`], of those streamlets alone whose list is another than the one that the asker knows.
    Changed(Vec<ChangedList>),
    /// To what has nothing to say.
    Done,
}

/// A backup about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The life of its store.
    pub incarnation: Incarnation,
    /// The life of its disk, if it flushes in rounds to one that survives a loss of power; else why
    /// it does not.
    pub disk: Result<Incarnation, String>,
    /// Its process.
    pub process: ProcessId,
    /// Bytes of its quota that are free.
    pub free_bytes: u64,
}

/// Reserved buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// They cover what was asked without a gap, in order of address.
    pub buffers: Vec<Buffer>,
    /// The process that has them registered.
    pub process: ProcessId,
}

/// A registered stretch of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its name on the link.
    pub key: BufferKey,
    /// The address in the group of its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u32,
}

impl Buffer {
    /// The address in the group behind its last byte.
    pub fn end(&self) -> u64 {
        self.address + u64::from(self.bytes)
    }
}

/// What a backup says of one copy after sealing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedCopy {
    /// The copy.
    pub copy: CopyId,
    /// Its state.
    pub answer: CopyAnswer,
}

/// What is known of a copy. Only within the recorded incarnation is there anything to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyAnswer {
    /// The store is not the one that the record names: whatever it holds says nothing.
    Unknown,
    /// Nothing of it is here, whatever was. A store freed its copy since no record named it any more. Of an own file the
    /// disk and the boot are the recorded ones.
    Gone {
        /// What the record names is a file.
        is_file: bool,
    },
    /// The store is the recorded one and has never opened this copy: nothing in this group was ever
    /// acknowledged.
    Absent,
    /// The copy's valid scan.
    Scanned {
        /// Ends at this address; 0 if not even the first header is whole.
        length: u64,
        /// The ordinal of the group's first record; meaningless if `length` is 0.
        first_ordinal: Ordinal,
        /// One above the last record's ordinal; meaningless if `length` is 0.
        end_ordinal: Ordinal,
    },
    /// The valid scan ends below what is known to have been durable here.
    Damaged {
        /// For people.
        detail: String,
    },
}

impl CopyAnswer {
    /// Not even the first header is whole.
    pub const EMPTY: Self = Self::Scanned {
        length: 0,
        first_ordinal: 0,
        end_ordinal: 0,
    };

    /// All that a scan found valid.
    pub(crate) fn of(scanned: &Scanned) -> Self {
        Self::Scanned {
            length: scanned.end.address,
            first_ordinal: scanned.header.first_ordinal,
            end_ordinal: scanned.end.ordinal,
        }
    }
}

/// Tells a copy from what stands under its name later: random, drawn anew by each start of a backup
/// and whenever the copy is completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CopyVersion(pub u64);

/// A copy in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyInfo {
    /// The copy.
    pub copy: CopyId,
    /// Which of those that may have had the name.
    pub version: CopyVersion,
    /// Where it stands.
    pub state: CopyState,
}

/// Where a copy stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyState {
    /// A primary may write.
    Open,
    /// No primary may write; `complete` may.
    Sealed,
    /// On its disk, up to a length that counts.
    Flushed,
}

/// What a backup has so much of, and no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// Shared memory.
    #[default]
    Memory,
    /// Copies that are not on the disk alone.
    CopiesInMemory,
    /// Copies.
    Copies,
    /// Streamlets of which copies came.
    Streamlets,
}

impl Room {
    /// All there are.
    pub(crate) const ALL: [Self; 4] = [
        Self::Memory,
        Self::CopiesInMemory,
        Self::Copies,
        Self::Streamlets,
    ];

    /// The setting of a broker that says how much there is.
    pub fn key(self) -> &'static str {
        match self {
            Self::Memory => "replica_store.memory_bytes",
            Self::CopiesInMemory => "replica_store.max_replicas_in_memory",
            Self::Copies => "replica_store.max_replicas",
            Self::Streamlets => "replica_store.max_streamlets",
        }
    }
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory => "bytes",
            Self::CopiesInMemory => "replicas in memory",
            Self::Copies => "replicas",
            Self::Streamlets => "streamlets",
        })
    }
}

/// A backup's no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A higher epoch has sealed the streamlet, or a restart the copy.
    #[error("epoch {by} has sealed it; a new owner is at work")]
    Sealed {
        /// The highest epoch that has sealed.
        by: Epoch,
    },
    /// `complete` by an epoch that has not sealed here.
    #[error("epoch {epoch} has not sealed this streamlet here; seal first")]
    NotSealed {
        /// The epoch that asked.
        epoch: Epoch,
    },
    /// The record names another life of the store.
    #[error("this store is not the recorded one; read the group's record again")]
    OtherIncarnation,
    /// There is no such copy.
    #[error("no such replica is here")]
    Unknown,
    /// The broker starts, and its own files are not looked at yet. That says nothing of what it holds.
    #[error("it is starting and does not know its replicas yet; ask again")]
    Starting,
    /// A limit of the backup is reached.
    #[error(
        "no room for {of}: {asked} asked, {free} free; raise its {}, or choose another broker",
        .of.key()
    )]
    NoRoom {
        /// Of what there is too little.
        of: Room,
        /// Asked.
        asked: u64,
        /// Free.
        free: u64,
    },
    /// The valid scan ends below the asked length.
    #[error("the replica is whole up to byte {length} only")]
    Short {
        /// Where it ends.
        length: u64,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The store failed.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl Request {
    /// What the request is about, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::Open { .. } => "open",
            Self::Flush { .. } => "flush",
            Self::FlushRound { .. } => "flush round",
            Self::Seal(_) => "seal",
            Self::Complete { .. } => "complete",
            Self::Read { .. } => "read",
            Self::Check { .. } => "check",
            Self::Free { .. } => "free",
            Self::Forget { .. } => "forget",
            Self::List { .. } | Self::ListChanged { .. } => "list",
        }
    }
}

/// Most streamlets of one [`Request::ListChanged`].
pub const MAX_LISTS: usize = 10_000;

/// Most bytes of one [`Request::Read`] or [`Request::Complete`].
pub const MAX_TRANSFER_BYTES: u32 = 4 << 20;
