use kera_metadata::{MemoryStore, StreamRecord};
use kera_protocol::ids::{LaneId, LaneKey, StreamletId};

use super::*;

fn at(streamlet: u32, lane: u32, ordinal: Ordinal) -> v1::LanePosition {
    v1::LanePosition {
        streamlet,
        lane,
        ordinal,
    }
}

#[test]
fn whoever_has_a_long_name_makes_pins_too() {
    let subject = format!("User:CN={}\n,O=\u{e9}", "\u{e9}".repeat(MAX_PIN_TEXT));
    let owner = owner_text(&subject);
    assert!(owner.starts_with("User:CN=\u{e9}") && owner.len() <= MAX_PIN_TEXT);
    let pin = PinRecord {
        owner,
        ..pin(
            &StreamRecord::new("clicks", config(), 1),
            "long",
            PinPolicy::Warn,
            0,
        )
    };
    assert_eq!(pin.check(), Ok(()));
    assert_eq!(owner_text("User:a\tb"), "User:a?b");
}

fn maker(may_wait: bool) -> Maker {
    Maker {
        name: "User:ann".to_owned(),
        may_wait,
    }
}

fn config() -> StreamConfig {
    StreamConfig {
        streamlets: 2,
        lanes: 2,
        ..StreamConfig::default()
    }
}

fn made(store: &MemoryStore) -> StreamRecord {
    let record = StreamRecord::new("clicks", config(), 1);
    store.create_stream(record, 0).unwrap().0
}

fn pin(stream: &StreamRecord, name: &str, policy: PinPolicy, at: Ordinal) -> PinRecord {
    PinRecord {
        stream: stream.id,
        name: name.to_owned(),
        job: "orders".to_owned(),
        owner: "User:ann".to_owned(),
        created_ms: 7,
        positions: vec![at; 4],
        max_age_ms: DEFAULT_PIN_AGE_MS,
        max_bytes: DEFAULT_PIN_BYTES,
        policy,
        lost: None,
        revision: 0,
    }
}

/// Puts a pin of the stream of [`made`].
fn put_at(
    store: &MemoryStore,
    pin: PinRecord,
    replaces: Option<u64>,
    is_full: bool,
    may_wait: bool,
) -> Result<(PinRecord, bool), WireError> {
    let maker = maker(may_wait);
    put(store, "clicks", &config(), pin, replaces, is_full, &maker)
}

/// Lane 1/1 begins there.
fn trim(store: &MemoryStore, stream: &StreamRecord, ordinal: Ordinal) {
    let streamlet = StreamletId(1);
    let epoch = store.streamlet(stream.id, streamlet).unwrap().unwrap();
    let start = Write::PutLaneStart {
        key: LaneKey {
            stream: stream.id,
            streamlet,
            lane: LaneId(1),
        },
        ordinal,
    };
    let trim = Transaction::new(vec![Compare::epoch(&epoch)], vec![start]);
    store.commit(trim).unwrap();
}

#[test]
fn each_lane_has_one_position() {
    let whole = [at(1, 1, 4), at(0, 0, 1), at(1, 0, 2), at(0, 1, 3)];
    let found = positions("clicks", &config(), &whole).unwrap();
    assert_eq!(found, [1, 2, 3, 4]);
    let refused = [
        (&whole[..3], "name one of each"),
        (
            &[at(0, 0, 1), at(0, 0, 1), at(1, 0, 2), at(0, 1, 3)],
            "two positions",
        ),
        (&[at(2, 0, 1)], "has no lane 2/0"),
        (&[at(0, 2, 1)], "has no lane 0/2"),
        (&[at(1, u32::MAX, 1)], "has no lane"),
    ];
    for (named, reason) in refused {
        let error = positions("clicks", &config(), named).unwrap_err();
        assert!(error.message.contains(reason), "{error}");
    }
}

#[test]
fn a_pin_of_the_same_name_is_moved_and_who_may_not_wait_ends_no_wait() {
    let store = MemoryStore::new();
    let stream = made(&store);
    let make = |policy, ordinal, may_wait| {
        let pin = pin(&stream, "chk-1", policy, ordinal);
        put_at(&store, pin, None, false, may_wait)
    };
    let refused = make(PinPolicy::Wait, 1, false).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotAuthorized);
    assert!(!make(PinPolicy::Warn, 1, false).unwrap().1);
    let (moved, is_moved) = make(PinPolicy::Wait, 2, true).unwrap();
    assert!(is_moved);
    assert_eq!(store.pins(None).unwrap(), std::slice::from_ref(&moved));
    assert_eq!(
        moved.created_ms, 8,
        "set in the same moment, it is another one"
    );
    let refused = make(PinPolicy::Warn, 3, false).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotAuthorized);
    assert_eq!(store.pins(None).unwrap()[0].positions, [2; 4]);
}

#[test]
fn a_stream_has_so_many_pins_and_none_below_where_its_lanes_begin() {
    let store = MemoryStore::new();
    let stream = made(&store);
    let make = |name: &str, ordinal| {
        let pin = pin(&stream, name, PinPolicy::Wait, ordinal);
        put_at(&store, pin, None, false, true)
    };
    for number in 0..MAX_PINS {
        make(&format!("chk-{number}"), 5).unwrap();
    }
    let refused = make("one-more", 5).unwrap_err();
    assert!(refused.message.contains("at most 100"), "{refused}");
    make("chk-1", 6).unwrap();
    trim(&store, &stream, 6);
    let refused = make("chk-2", 5).unwrap_err();
    assert!(
        refused.message.contains("lane 1/1 begins above"),
        "{refused}"
    );
    make("chk-2", 6).unwrap();
}

#[test]
fn a_pin_that_was_made_anew_is_neither_moved_nor_deleted_by_who_knew_the_one_before() {
    let store = MemoryStore::new();
    let stream = made(&store);
    let make = |at, created_ms, replaces| {
        let pin = PinRecord {
            created_ms,
            ..pin(&stream, "chk-1", PinPolicy::Wait, at)
        };
        put_at(&store, pin, replaces, false, true)
    };
    let delete = |created_ms| {
        let key = PinKey {
            stream: stream.id,
            name: "chk-1".to_owned(),
        };
        super::delete(&store, "clicks", key, created_ms, &maker(true))
    };
    let (first, moved) = make(1, 10, Some(0)).unwrap();
    assert!(!moved);
    // The same attempt again, whose answer was lost: it is there, and as old as it was.
    let (again, moved) = make(1, 11, Some(0)).unwrap();
    assert_eq!((again, moved), (first.clone(), false));
    let refused = make(2, 11, Some(0)).unwrap_err();
    assert!(refused.message.contains("somebody else"), "{refused}");
    let (second, moved) = make(2, 12, Some(10)).unwrap();
    assert!(moved);
    assert_eq!(make(2, 13, Some(10)).unwrap(), (second.clone(), true));
    // What was sent before comes late.
    make(1, 14, Some(0)).unwrap_err();
    let refused = delete(Some(10)).unwrap_err();
    assert!(refused.message.contains("made or moved since"), "{refused}");
    assert_eq!(store.pins(None).unwrap(), std::slice::from_ref(&second));
    assert_eq!(delete(Some(12)).unwrap(), second);
    make(2, 15, Some(12)).unwrap_err();
    make(2, 15, None).unwrap();
    delete(None).unwrap();
    let full = |at| {
        let pin = pin(&stream, "chk-1", PinPolicy::Wait, at);
        put_at(&store, pin, None, true, true)
    };
    assert_eq!(full(1).unwrap_err().code, ErrorCode::StorageFull);
    make(1, 16, None).unwrap();
    full(2).unwrap();
    // To move one that holds nothing back frees nothing, and takes of what deletions need.
    let warns = pin(&stream, "warns", PinPolicy::Warn, 1);
    let put_warns = |is_full| {
        let pin = warns.clone();
        put_at(&store, pin, None, is_full, true)
    };
    put_warns(false).unwrap();
    assert_eq!(put_warns(true).unwrap_err().code, ErrorCode::StorageFull);
}

#[test]
fn a_pin_that_holds_more_back_writes_its_stream_so_that_trims_decided_before_are_refused() {
    let store = MemoryStore::new();
    let stream = made(&store);
    let revision = || store.stream(stream.id).unwrap().unwrap().revision;
    let writes = |policy, at| {
        let (before, pin) = (revision(), pin(&stream, "chk-1", policy, at));
        put_at(&store, pin, None, false, true).unwrap();
        revision() != before
    };
    assert!(!writes(PinPolicy::Warn, 5), "it keeps nothing back");
    assert!(writes(PinPolicy::Wait, 5));
    assert!(
        !writes(PinPolicy::Wait, 6),
        "what lies above was kept before"
    );
    assert!(writes(PinPolicy::Wait, 5));
    let there = store.pins(None).unwrap().remove(0);
    let loss = below_start(&there, 2, [(StreamletId(1), LaneId(1), 6)], 1).unwrap();
    lost_at_once(&store, "clicks", &there, &loss);
    assert!(
        writes(PinPolicy::Wait, 6),
        "nothing waited for the lost one"
    );
    let found = store.stream(stream.id).unwrap().unwrap();
    let as_it_was = StreamRecord {
        revision: found.revision,
        ..stream.clone()
    };
    assert_eq!(found, as_it_was);
}

#[test]
fn a_broker_whose_clock_lies_before_its_stream_makes_no_pin() {
    let made_ms = 2 * CLOCKS_APART_MS;
    assert_eq!(
        stamp("clicks", made_ms, CLOCKS_APART_MS),
        Ok(CLOCKS_APART_MS)
    );
    let refused = stamp("clicks", made_ms, CLOCKS_APART_MS - 1).unwrap_err();
    assert!(refused.message.contains("clock"), "{refused}");
}

#[test]
fn an_attempt_that_is_repeated_says_what_its_pin_has_lost_meanwhile() {
    let store = MemoryStore::new();
    let stream = made(&store);
    let make = || {
        let pin = pin(&stream, "chk-1", PinPolicy::Wait, 5);
        put_at(&store, pin, Some(0), false, true)
    };
    make().unwrap();
    trim(&store, &stream, 6);
    let (made, _) = make().unwrap();
    assert_eq!(made.lost.unwrap().ordinal, 5);
}

#[test]
fn pins_of_a_stream_have_so_many_positions_and_those_lost_long_ago_make_room() {
    let store = MemoryStore::new();
    let stream = made(&store);
    let large = |name: &str, positions| PinRecord {
        positions: vec![0; positions],
        ..pin(&stream, name, PinPolicy::Warn, 0)
    };
    let there = [large("a", MAX_PIN_POSITIONS - 4), large("b", 3)];
    let of = |pin: PinRecord| outlived("clicks", &there, &pin).map(|found| found.is_some());
    assert_eq!(of(large("c", 1)), Ok(false));
    assert!(of(large("c", 2)).unwrap_err().message.contains("positions"));
    assert_eq!(
        of(large("a", MAX_PIN_POSITIONS - 3)),
        Ok(false),
        "it is moved"
    );

    let mut full: Vec<_> = (0..MAX_PINS).map(|at| large(&at.to_string(), 1)).collect();
    let at = |created_ms| PinRecord {
        created_ms,
        ..large("new", 1)
    };
    let room = |full: &[PinRecord], pin: &PinRecord| {
        let found = outlived("clicks", full, pin);
        found.map(|found| found.map(|pin| pin.name.clone()))
    };
    for (name, at_ms) in [(4, 20), (2, 10)] {
        full[name].lost = Some(kera_metadata::PinLoss {
            streamlet: StreamletId(0),
            lane: LaneId(0),
            ordinal: 0,
            cause: LossCause::Trim,
            at_ms,
        });
    }
    let old = DEFAULT_PIN_AGE_MS + 11;
    assert_eq!(room(&full, &at(old)), Ok(Some("2".to_owned())));
    assert!(room(&full, &at(old - 1)).is_err());
}
