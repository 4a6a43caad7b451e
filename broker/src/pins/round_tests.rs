//! What races with a round of retention, and with a trim.

use kera_metadata::{MemoryStore, PinPolicy, StreamConfig, StreamRecord};
use kera_protocol::ids::LaneKey;

use super::*;

fn made(store: &MemoryStore, name: &str) -> StreamId {
    let config = StreamConfig {
        streamlets: 2,
        lanes: 2,
        ..StreamConfig::default()
    };
    let record = StreamRecord::new(name, config, 1);
    store.create_stream(record, 0).unwrap().0.id
}

fn pin(stream: StreamId, name: &str, policy: PinPolicy, at: Ordinal) -> PinRecord {
    PinRecord {
        stream,
        name: name.to_owned(),
        job: String::new(),
        owner: "User:ann".to_owned(),
        created_ms: 7,
        positions: vec![at; 4],
        max_age_ms: 1_000,
        max_bytes: 1_000,
        policy,
        lost: None,
        revision: 0,
    }
}

/// Puts a pin in the place of whatever has its name.
fn put(store: &dyn MetadataStore, pin: PinRecord) -> PinRecord {
    let there = read(store, pin.key()).unwrap();
    let revision = there.map_or(0, |there| there.revision);
    let compare = Compare::revision(Key::Pin(pin.key()), revision);
    let write = Write::PutPin(pin.clone());
    let done = store.commit(Transaction::new(vec![compare], vec![write]));
    PinRecord {
        revision: done.unwrap().revision,
        ..pin
    }
}

fn loss(ordinal: Ordinal) -> PinLoss {
    PinLoss {
        streamlet: StreamletId(0),
        lane: LaneId(0),
        ordinal,
        cause: LossCause::Retention,
        at_ms: 9,
    }
}

fn start(lane: u32, start: Ordinal) -> Start {
    Start {
        lane: (StreamletId(0), LaneId(lane)),
        start,
        next: start,
    }
}

/// As a round decides where all below 10 is due of a lane: pins below that are lost if they only warn, and keep it else.
fn decided(pins: &[PinRecord]) -> Spared {
    let needing = |policy| {
        let pins = pins.iter().enumerate();
        pins.filter(move |(_, p)| p.lost.is_none() && p.policy == policy && p.positions[0] < 10)
    };
    Spared {
        lost: needing(PinPolicy::Warn)
            .map(|(at, p)| (at, loss(p.positions[0])))
            .collect(),
        starts: match needing(PinPolicy::Wait).next() {
            Some(_) => Vec::new(),
            None => vec![start(0, 10)],
        },
        ..Spared::default()
    }
}

#[test]
fn a_pin_that_warns_stops_no_retention_by_being_moved_and_one_that_waits_by_then_does() {
    let store = MemoryStore::new();
    let stream = made(&store, "s");
    put(&store, pin(stream, "a", PinPolicy::Warn, 1));
    // The pin is moved between each read of it and its write.
    let moving = |policy| {
        let store = &store;
        move |found: &PinRecord, loss: &PinLoss| {
            put(store, pin(stream, "a", policy, 2));
            put_loss(store, found, loss, Vec::new())
        }
    };
    let settled = settle(&store, stream, decided, moving(PinPolicy::Warn)).unwrap();
    assert_eq!(settled.unwrap().1.starts, [start(0, 10)]);
    assert_eq!(store.pins(None).unwrap()[0].lost, None);
    let settled = settle(&store, stream, decided, moving(PinPolicy::Wait)).unwrap();
    assert_eq!(settled.unwrap().1.starts, []);
    // Nothing goes either while the broker may not record it, as another one owns the streamlet.
    put(&store, pin(stream, "a", PinPolicy::Warn, 1));
    let settled = settle(&store, stream, decided, |_, _| Ok(false)).unwrap();
    assert!(settled.is_none());
    let record = |found: &PinRecord, loss: &PinLoss| put_loss(&store, found, loss, Vec::new());
    let (pins, spared) = settle(&store, stream, decided, record).unwrap().unwrap();
    assert_eq!(
        (pins[0].lost.clone(), spared.starts.len()),
        (Some(loss(1)), 1)
    );
    assert_eq!(store.pins(None).unwrap()[0].lost, Some(loss(1)));
}

#[test]
fn a_pin_that_is_made_while_lanes_are_trimmed_spares_those_that_come_later() {
    let stream = StreamId::random();
    let starts = [start(0, 10), start(1, 10), start(2, 10), start(3, 10)];
    let pins = vec![PinRecord {
        positions: vec![10, 0, 10, 0, 0, 0, 10, 0],
        ..pin(stream, "a", PinPolicy::Wait, 0)
    }];
    let mut reads = vec![None, Some(Ok(pins)), None, None].into_iter();
    let mut trimmed = Vec::new();
    let walked = walk(
        &starts,
        2,
        |_| reads.next().unwrap(),
        |start| {
            trimmed.push(start.lane.1.0);
            true
        },
    );
    assert_eq!((walked, trimmed), (Ok(()), vec![0, 1, 3]));
    // One is refused, as a pin was made since: what comes next goes by the pins that there are now.
    let mut asked = Vec::new();
    let read_again = |was_refused: bool| {
        asked.push(was_refused);
        was_refused.then(|| Ok(Vec::new()))
    };
    let walked = walk(&starts, 2, read_again, |start| start.lane.1.0 != 1);
    assert_eq!((walked, asked), (Ok(()), vec![false, false, true, false]));
    // What cannot be read may be pinned.
    let mut trimmed = 0;
    let mut reads = vec![None, Some(Err(MetadataError::Closed))].into_iter();
    let count = |_: &Start| {
        trimmed += 1;
        true
    };
    walk(&starts, 2, |_| reads.next().unwrap(), count).unwrap_err();
    assert_eq!(trimmed, 1);
}

#[test]
fn a_trim_names_pins_that_it_hurts_also_where_retention_has_recorded_them_first() {
    let store = MemoryStore::new();
    let stream = made(&store, "s");
    for name in ["found", "told", "moved"] {
        put(&store, pin(stream, name, PinPolicy::Wait, 5));
    }
    let lost = |name| PinRecord {
        lost: Some(loss(5)),
        ..pin(stream, name, PinPolicy::Wait, 5)
    };
    put(&store, lost("before"));
    let whole = whole(&store, stream).unwrap();
    put(&store, lost("told"));
    let starts = [(StreamletId(1), LaneId(1), 6)];
    let hurt = |pin: &PinRecord| is_hurt(&store, "s", 2, &whole, pin.clone(), &starts).unwrap();
    let pins = store.pins(None).unwrap();
    put(&store, pin(stream, "moved", PinPolicy::Wait, 6));
    let names: Vec<_> = pins.iter().filter(|pin| hurt(pin)).collect();
    let names: Vec<_> = names.iter().map(|pin| pin.name.as_str()).collect();
    assert_eq!(names, ["found", "told"]);
    let found = read(&store, pins[1].key()).unwrap().unwrap();
    assert_eq!(found.name, "found");
    assert_eq!(found.lost.unwrap().cause, LossCause::Trim);
    // It is recorded while it is looked at: the answer is not that it is whole.
    put(&store, pin(stream, "found", PinPolicy::Wait, 5));
    let stale = store.pins(None).unwrap().swap_remove(1);
    put(&store, lost("found"));
    assert!(hurt(&stale));
}

#[test]
fn all_pins_are_looked_at_by_stream_and_some_at_a_time() {
    let store = MemoryStore::new();
    let mut streams = [made(&store, "a"), made(&store, "b"), made(&store, "c")];
    streams.sort();
    for (stream, pins) in [(streams[0], PAGE - 1), (streams[2], 3)] {
        for number in 0..pins {
            put(&store, pin(stream, &number.to_string(), PinPolicy::Warn, 0));
        }
    }
    let mut seen = Vec::new();
    let look = |stream, pins: &mut [PinRecord]| {
        seen.push((stream, pins.len()));
        Ok(())
    };
    each_stream(&store, look).unwrap();
    assert_eq!(seen, [(streams[0], PAGE - 1), (streams[2], 3)]);
}

#[test]
fn a_lane_that_was_trimmed_is_below_a_pin_s_position_only() {
    let key = LaneKey {
        stream: StreamId::random(),
        streamlet: StreamletId(1),
        lane: LaneId(1),
    };
    let found = |start| {
        let pin = pin(key.stream, "a", PinPolicy::Wait, 5);
        below_start(&pin, 2, [(key.streamlet, key.lane, start)], 1)
    };
    assert_eq!(found(5), None);
    assert_eq!(found(6).map(|loss| loss.ordinal), Some(5));
}
