//! Requests, replies and refusals as messages.

use bytes::Bytes;
use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};
use kera_protocol::v1;
use uuid::Uuid;

use crate::ids::{BrokerId, BufferKey, CopyId, Incarnation, ProcessId, StreamletKey};
use crate::transport::{
    Buffer, ChangedList, Checked, CopyAnswer, CopyInfo, CopyState, CopyVersion, Description,
    KnownList, ListTag, MAX_TRANSFER_BYTES, Opened, Place, Progress, Refusal, Request, Room, Seal,
    SealedCopy,
};

/// A message that lacks what it must have; the text names it.
pub(super) type Parsed<T> = Result<T, &'static str>;

pub(super) fn copy_to(copy: &CopyId) -> v1::CopyName {
    let stream = Bytes::copy_from_slice(copy.streamlet.stream.as_bytes());
    let (stream, compacted_stream) = match copy.generation {
        0 => (stream, Bytes::new()),
        _ => (Bytes::new(), stream),
    };
    v1::CopyName {
        stream,
        streamlet: copy.streamlet.streamlet.0,
        group: copy.group.0,
        epoch: copy.epoch.0,
        compacted_stream,
        generation: copy.generation,
    }
}

pub(super) fn copy_from(copy: Option<v1::CopyName>) -> Parsed<CopyId> {
    let copy = copy.ok_or("no replica is named")?;
    let stream = match copy.generation {
        0 => &copy.stream,
        _ => &copy.compacted_stream,
    };
    Ok(CopyId {
        streamlet: streamlet_from(stream, copy.streamlet)?,
        group: GroupId(copy.group),
        epoch: Epoch(copy.epoch),
        generation: copy.generation,
    })
}

pub(super) fn streamlet_from(stream: &[u8], streamlet: u32) -> Parsed<StreamletKey> {
    Ok(StreamletKey {
        stream: StreamId::from_slice(stream).ok_or("a stream id has 16 bytes")?,
        streamlet: StreamletId(streamlet),
    })
}

pub(super) fn streamlet_to(streamlet: StreamletKey) -> v1::StreamletName {
    v1::StreamletName {
        stream: Bytes::copy_from_slice(streamlet.stream.as_bytes()),
        streamlet: streamlet.streamlet.0,
    }
}

pub(super) fn known_to(known: &KnownList) -> v1::KnownList {
    v1::KnownList {
        streamlet: Some(streamlet_to(known.streamlet)),
        tag: known.tag.map_or(0, ListTag::number),
    }
}

pub(super) fn changed_to(list: &ChangedList) -> v1::KnownList {
    known_to(&KnownList {
        streamlet: list.streamlet,
        tag: list.tag,
    })
}

pub(super) fn known_from(known: v1::KnownList) -> Parsed<KnownList> {
    let streamlet = known.streamlet.ok_or("a list has no streamlet")?;
    Ok(KnownList {
        streamlet: streamlet_from(&streamlet.stream, streamlet.streamlet)?,
        tag: (known.tag != 0).then(|| ListTag::new(known.tag)),
    })
}

pub(super) fn incarnation_to(incarnation: &Incarnation) -> v1::StoreIncarnation {
    v1::StoreIncarnation {
        store_id: Bytes::copy_from_slice(incarnation.store_id.as_bytes()),
        boot_id: Bytes::copy_from_slice(incarnation.boot_id.as_bytes()),
    }
}

pub(super) fn incarnation_from(incarnation: Option<v1::StoreIncarnation>) -> Parsed<Incarnation> {
    let incarnation = incarnation.ok_or("no incarnation is named")?;
    let id = |bytes: &Bytes| Uuid::from_slice(bytes).map_err(|_| "an id has 16 bytes");
    Ok(Incarnation {
        store_id: id(&incarnation.store_id)?,
        boot_id: id(&incarnation.boot_id)?,
    })
}

pub(super) fn open_from(request: v1::OpenCopyRequest) -> Parsed<(BrokerId, Request)> {
    let primary = BrokerId(request.primary);
    let open = Request::Open {
        copy: copy_from(request.copy)?,
        incarnation: incarnation_from(request.incarnation)?,
        primary,
        segment_size: request.segment_size,
        segments: request.segments,
        address: request.address,
        bytes: request.bytes,
    };
    Ok((primary, open))
}

pub(super) fn opened_to(opened: &Opened) -> v1::OpenedCopy {
    let buffers = opened.buffers.iter().map(|buffer| v1::CopyBuffer {
        key: buffer.key.0,
        address: buffer.address,
        bytes: buffer.bytes,
    });
    v1::OpenedCopy {
        buffers: buffers.collect(),
        process: opened.process.0,
    }
}

pub(super) fn opened_from(opened: v1::OpenedCopy) -> Opened {
    let buffers = opened.buffers.iter().map(|buffer| Buffer {
        key: BufferKey(buffer.key),
        address: buffer.address,
        bytes: buffer.bytes,
    });
    Opened {
        buffers: buffers.collect(),
        process: ProcessId(opened.process),
    }
}

pub(super) fn description_to(description: &Description) -> v1::BackupDescription {
    v1::BackupDescription {
        incarnation: Some(incarnation_to(&description.incarnation)),
        process: description.process.0,
        free_bytes: description.free_bytes,
        disk: description.disk.as_ref().ok().map(incarnation_to),
        no_disk: description.disk.as_ref().err().cloned().unwrap_or_default(),
    }
}

pub(super) fn description_from(description: v1::BackupDescription) -> Parsed<Description> {
    let disk = match description.disk {
        Some(disk) => Ok(incarnation_from(Some(disk))?),
        None if description.no_disk.is_empty() => {
            Err("it runs an older version, which does not flush before it answers".to_owned())
        }
        None => Err(description.no_disk),
    };
    Ok(Description {
        disk,
        incarnation: incarnation_from(description.incarnation)?,
        process: ProcessId(description.process),
        free_bytes: description.free_bytes,
    })
}

pub(super) fn round_to(copies: &[(CopyId, u64)]) -> v1::FlushRoundRequest {
    let copies = copies.iter().map(|(copy, end)| v1::FlushEnd {
        copy: Some(copy_to(copy)),
        end: *end,
    });
    v1::FlushRoundRequest {
        copies: copies.collect(),
    }
}

pub(super) fn round_from(request: v1::FlushRoundRequest) -> Parsed<Request> {
    let copies = request.copies.into_iter();
    let copies = copies.map(|one| Ok((copy_from(one.copy)?, one.end)));
    Ok(Request::FlushRound {
        copies: copies.collect::<Parsed<_>>()?,
    })
}

pub(super) fn flushed_to(outcomes: &[Result<(), Refusal>]) -> v1::FlushRoundResponse {
    let outcomes = outcomes.iter().map(|outcome| v1::FlushOutcome {
        refusal: outcome.as_ref().err().map(refusal_to),
    });
    v1::FlushRoundResponse {
        outcomes: outcomes.collect(),
    }
}

pub(super) fn flushed_from(response: v1::FlushRoundResponse) -> Vec<Result<(), Refusal>> {
    let outcomes = response.outcomes.into_iter();
    let outcome = |one: v1::FlushOutcome| one.refusal.map_or(Ok(()), |no| Err(refusal_from(no)));
    outcomes.map(outcome).collect()
}

pub(super) fn seal_to(seal: &Seal) -> v1::StreamletSeal {
    let copies = seal
        .copies
        .iter()
        .map(|(copy, incarnation)| v1::RecordedCopy {
            copy: Some(copy_to(copy)),
            incarnation: Some(incarnation_to(incarnation)),
        });
    v1::StreamletSeal {
        stream: Bytes::copy_from_slice(seal.streamlet.stream.as_bytes()),
        streamlet: seal.streamlet.streamlet.0,
        epoch: seal.epoch.0,
        copies: copies.collect(),
    }
}

pub(super) fn seal_from(seal: v1::StreamletSeal) -> Parsed<Seal> {
    let copies = seal.copies.into_iter().map(|recorded| {
        let copy = copy_from(recorded.copy)?;
        Ok((copy, incarnation_from(recorded.incarnation)?))
    });
    Ok(Seal {
        streamlet: streamlet_from(&seal.stream, seal.streamlet)?,
        epoch: Epoch(seal.epoch),
        copies: copies.collect::<Parsed<_>>()?,
    })
}

pub(super) fn sealed_to(sealed: &[SealedCopy]) -> v1::StreamletSealed {
    use v1::sealed_copy_answer::Answer;
    let copies = sealed.iter().map(|sealed| {
        let answer = match &sealed.answer {
            CopyAnswer::Unknown => Answer::Unknown(v1::CopyUnknown::default()),
            CopyAnswer::Gone { is_file } => Answer::Unknown(v1::CopyUnknown {
                is_gone: true,
                is_file: *is_file,
            }),
            CopyAnswer::Absent => Answer::Absent(v1::CopyAbsent {}),
            CopyAnswer::Scanned {
                length,
                first_ordinal,
                end_ordinal,
            } => Answer::Scanned(v1::CopyScanned {
                length: *length,
                first_ordinal: *first_ordinal,
                end_ordinal: *end_ordinal,
            }),
            CopyAnswer::Damaged { detail } => Answer::Damaged(v1::CopyDamaged {
                detail: detail.clone(),
            }),
        };
        v1::SealedCopyAnswer {
            copy: Some(copy_to(&sealed.copy)),
            answer: Some(answer),
        }
    });
    v1::StreamletSealed {
        copies: copies.collect(),
    }
}

pub(super) fn sealed_from(sealed: v1::StreamletSealed) -> Parsed<Vec<SealedCopy>> {
    use v1::sealed_copy_answer::Answer;
    let copies = sealed.copies.into_iter().map(|sealed| {
        let answer = match sealed.answer {
            Some(Answer::Unknown(v1::CopyUnknown {
                is_gone: true,
                is_file,
            })) => CopyAnswer::Gone { is_file },
            // An answer of a kind that this build does not know says nothing.
            None | Some(Answer::Unknown(_)) => CopyAnswer::Unknown,
            Some(Answer::Absent(_)) => CopyAnswer::Absent,
            Some(Answer::Scanned(scanned)) => CopyAnswer::Scanned {
                length: scanned.length,
                first_ordinal: scanned.first_ordinal,
                end_ordinal: scanned.end_ordinal,
            },
            Some(Answer::Damaged(damaged)) => CopyAnswer::Damaged {
                detail: damaged.detail,
            },
        };
        Ok(SealedCopy {
            copy: copy_from(sealed.copy)?,
            answer,
        })
    });
    copies.collect()
}

pub(super) fn check_to(
    copy: &CopyId,
    from: Progress,
    bytes: u32,
    end: Place,
) -> v1::CheckCopyRequest {
    v1::CheckCopyRequest {
        copy: Some(copy_to(copy)),
        address: from.place.address,
        ordinal: from.place.ordinal,
        digest: from.digest,
        bytes,
        end_address: end.address,
        end_ordinal: end.ordinal,
    }
}

pub(super) fn check_from(request: v1::CheckCopyRequest) -> Parsed<Request> {
    let place = Place {
        address: request.address,
        ordinal: request.ordinal,
    };
    Ok(Request::Check {
        copy: copy_from(request.copy)?,
        from: Progress {
            place,
            digest: request.digest,
        },
        bytes: request.bytes.min(MAX_TRANSFER_BYTES),
        end: Place {
            address: request.end_address,
            ordinal: request.end_ordinal,
        },
    })
}

pub(super) fn checked_to(checked: Checked) -> v1::CheckCopyResponse {
    v1::CheckCopyResponse {
        address: checked.to.place.address,
        ordinal: checked.to.place.ordinal,
        digest: checked.to.digest,
        wrong: checked.wrong.unwrap_or_default(),
    }
}

pub(super) fn checked_from(response: v1::CheckCopyResponse) -> Checked {
    let place = Place {
        address: response.address,
        ordinal: response.ordinal,
    };
    Checked {
        to: Progress {
            place,
            digest: response.digest,
        },
        wrong: Some(response.wrong).filter(|wrong| !wrong.is_empty()),
    }
}

pub(super) fn info_to(info: &CopyInfo) -> v1::ListedCopy {
    let state = match info.state {
        CopyState::Open => v1::ListedState::Open,
        CopyState::Sealed => v1::ListedState::Sealed,
        CopyState::Flushed => v1::ListedState::Flushed,
    };
    v1::ListedCopy {
        copy: Some(copy_to(&info.copy)),
        state: state.into(),
        version: info.version.0,
    }
}

pub(super) fn info_from(listed: v1::ListedCopy) -> Parsed<CopyInfo> {
    let state = match listed.state() {
        v1::ListedState::Open => CopyState::Open,
        v1::ListedState::Flushed => CopyState::Flushed,
        v1::ListedState::Sealed | v1::ListedState::Unspecified => CopyState::Sealed,
    };
    Ok(CopyInfo {
        copy: copy_from(listed.copy)?,
        version: CopyVersion(listed.version),
        state,
    })
}

pub(super) fn refusal_to(refusal: &Refusal) -> v1::Refusal {
    use v1::refusal::Kind;
    let (kind, number, second, text) = match refusal {
        Refusal::Sealed { by } => (Kind::Sealed, u64::from(by.0), 0, ""),
        Refusal::NotSealed { epoch } => (Kind::NotSealed, u64::from(epoch.0), 0, ""),
        Refusal::OtherIncarnation => (Kind::OtherIncarnation, 0, 0, ""),
        Refusal::Unknown => (Kind::Unknown, 0, 0, ""),
        // It travels as no answer at all.
        Refusal::Starting => (Kind::Unspecified, 0, 0, ""),
        Refusal::NoRoom { of, asked, free } => (Kind::NoRoom, *asked, *free, room_to(*of)),
        Refusal::Short { length } => (Kind::Short, *length, 0, ""),
        Refusal::Invalid(text) => (Kind::Invalid, 0, 0, text.as_str()),
        Refusal::Failed(text) => (Kind::Failed, 0, 0, text.as_str()),
    };
    v1::Refusal {
        kind: kind.into(),
        number,
        second,
        text: text.to_owned(),
    }
}

/// Empty for bytes, as builds have it that know nothing else.
fn room_to(room: Room) -> &'static str {
    match room {
        Room::Memory => "",
        other => other.key(),
    }
}

fn room_from(text: &str) -> Room {
    let named = Room::ALL.into_iter().find(|room| room_to(*room) == text);
    named.unwrap_or_default()
}

pub(super) fn refusal_from(refusal: v1::Refusal) -> Refusal {
    use v1::refusal::Kind;
    let epoch = Epoch(u32::try_from(refusal.number).unwrap_or(u32::MAX));
    match refusal.kind() {
        Kind::Sealed => Refusal::Sealed { by: epoch },
        Kind::NotSealed => Refusal::NotSealed { epoch },
        Kind::OtherIncarnation => Refusal::OtherIncarnation,
        Kind::Unknown => Refusal::Unknown,
        Kind::NoRoom => Refusal::NoRoom {
            of: room_from(&refusal.text),
            asked: refusal.number,
            free: refusal.second,
        },
        Kind::Short => Refusal::Short {
            length: refusal.number,
        },
        Kind::Invalid => Refusal::Invalid(refusal.text),
        Kind::Failed => Refusal::Failed(refusal.text),
        Kind::Unspecified => Refusal::Failed(format!(
            "a refusal of a kind unknown to this build: {}",
            refusal.text
        )),
    }
}

#[cfg(test)]
mod tests {
    use kera_protocol::Message;

    use super::*;

    fn no_room(of: Room) -> Refusal {
        let (asked, free) = (9, 1);
        Refusal::NoRoom { of, asked, free }
    }

    #[test]
    fn every_refusal_comes_back_as_it_went() {
        let refusals = [
            Refusal::Sealed { by: Epoch(7) },
            Refusal::NotSealed { epoch: Epoch(8) },
            Refusal::OtherIncarnation,
            Refusal::Unknown,
            no_room(Room::Memory),
            no_room(Room::CopiesInMemory),
            no_room(Room::Copies),
            no_room(Room::Streamlets),
            Refusal::Short { length: 12 },
            Refusal::Invalid("no".into()),
            Refusal::Failed("disk".into()),
        ];
        for refusal in refusals {
            assert_eq!(refusal_from(refusal_to(&refusal)), refusal);
        }
    }

    #[test]
    fn answers_and_seals_come_back_as_they_went() {
        let copy = CopyId {
            streamlet: StreamletKey {
                stream: StreamId::random(),
                streamlet: StreamletId(4),
            },
            group: GroupId(5),
            epoch: Epoch(6),
            generation: 0,
        };
        let answers = [
            CopyAnswer::Unknown,
            CopyAnswer::Gone { is_file: false },
            CopyAnswer::Gone { is_file: true },
            CopyAnswer::Absent,
            CopyAnswer::Scanned {
                length: 1,
                first_ordinal: 2,
                end_ordinal: 3,
            },
            CopyAnswer::Damaged {
                detail: "torn".into(),
            },
        ];
        let sealed: Vec<_> = answers
            .map(|answer| SealedCopy { copy, answer })
            .into_iter()
            .collect();
        assert_eq!(sealed_from(sealed_to(&sealed)), Ok(sealed));

        let incarnation = Incarnation {
            store_id: Uuid::from_u128(1),
            boot_id: Uuid::from_u128(2),
        };
        let seal = Seal {
            streamlet: copy.streamlet,
            epoch: Epoch(9),
            copies: vec![(copy, incarnation)],
        };
        assert_eq!(seal_from(seal_to(&seal)), Ok(seal));
    }

    #[test]
    fn rounds_and_disks_come_back_as_they_went() {
        let copy = CopyId {
            streamlet: StreamletKey {
                stream: StreamId::random(),
                streamlet: StreamletId(4),
            },
            group: GroupId(5),
            epoch: Epoch(6),
            generation: 0,
        };
        let copies = vec![(copy, 7)];
        let message = round_to(&copies);
        assert_eq!(round_from(message), Ok(Request::FlushRound { copies }));
        let outcomes = vec![
            Ok(()),
            Err(Refusal::Unknown),
            Err(Refusal::Failed("disk".into())),
        ];
        assert_eq!(flushed_from(flushed_to(&outcomes)), outcomes);

        let mut description = Description {
            incarnation: Incarnation {
                store_id: Uuid::from_u128(1),
                boot_id: Uuid::from_u128(2),
            },
            disk: Ok(Incarnation::of_disk(Uuid::from_u128(3))),
            process: ProcessId(4),
            free_bytes: 5,
        };
        let message = description_to(&description);
        assert_eq!(description_from(message.clone()), Ok(description.clone()));
        // A version that knows nothing of disks says nothing of its own.
        let older = v1::BackupDescription {
            disk: None,
            ..message
        };
        let read = description_from(older).expect("it has all that was asked then");
        let reason = read.disk.expect_err("it flushes nothing in rounds");
        assert!(reason.contains("older version"), "{reason}");
        description.disk = Err("it is on tmpfs".into());
        let message = description_to(&description);
        assert_eq!(description_from(message), Ok(description));
    }

    #[test]
    fn a_name_without_a_generation_is_of_a_group_as_appended() {
        // As the version before generations sent it.
        let mut sent = vec![0x0a, 16];
        sent.extend_from_slice(&[0x11; 16]);
        sent.extend_from_slice(&[0x10, 3, 0x18, 5, 0x20, 9]);
        let name = v1::CopyName::decode(&sent[..]).expect("a message");
        let copy = copy_from(Some(name)).expect("a name");
        let found = (copy.group, copy.epoch, copy.generation);
        assert_eq!(found, (GroupId(5), Epoch(9), 0));
        assert_eq!(copy_to(&copy).encode_to_vec(), sent, "it is still sent so");

        let compacted = CopyId {
            generation: 7,
            ..copy
        };
        let name = copy_to(&compacted);
        assert!(
            name.stream.is_empty(),
            "that version finds no stream, and refuses"
        );
        assert_eq!(copy_from(Some(name)), Ok(compacted));
    }

    #[test]
    fn what_lacks_a_name_is_refused() {
        assert!(copy_from(None).is_err());
        assert!(copy_from(Some(v1::CopyName::default())).is_err());
        assert!(incarnation_from(Some(v1::StoreIncarnation::default())).is_err());
    }
}
