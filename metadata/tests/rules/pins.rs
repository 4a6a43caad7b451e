//! Pins of streams.

use kera_metadata::pin::MAX_PIN_NAME;

use super::*;

/// What is done to a pin that is whole.
type Change = fn(&mut PinRecord);

fn pin(stream: StreamId, name: &str) -> PinRecord {
    PinRecord {
        stream,
        name: name.to_owned(),
        job: "billing".to_owned(),
        owner: "User:ann".to_owned(),
        created_ms: 5,
        positions: vec![7, 0, 9],
        max_age_ms: 10,
        max_bytes: 20,
        policy: PinPolicy::Wait,
        lost: None,
        revision: 0,
    }
}

fn put(store: &dyn MetadataStore, pin: &PinRecord) -> Result<Committed, MetadataError> {
    let compare = Compare::revision(Key::Pin(pin.key()), pin.revision);
    store.commit(Transaction::new(
        vec![compare],
        vec![Write::PutPin(pin.clone())],
    ))
}

#[test]
fn pins_are_kept_by_stream_and_name_and_go_with_their_stream() {
    on_each_store(|store| {
        let (one, _) = store.create_stream(stream("a"), 7).unwrap();
        let (other, _) = store.create_stream(stream("b"), 7).unwrap();
        let mut pins = Vec::new();
        for (of, name) in [(&one, "chk-1"), (&one, "chk-2"), (&other, "chk-1")] {
            let mut made = pin(of.id, name);
            made.revision = put(&*store, &made).unwrap().revision;
            pins.push(made);
        }
        assert_eq!(store.pins(Some(one.id)).unwrap(), pins[..2]);
        assert_eq!(store.pins(Some(other.id)).unwrap(), pins[2..]);
        pins.sort_by_key(PinRecord::key);
        assert_eq!(store.pins(None).unwrap(), pins);
        assert_eq!(store.load().unwrap().pins, pins);
        let after = |pin: &PinRecord, most| store.pins_after(Some(&pin.key()), most).unwrap();
        assert_eq!(store.pins_after(None, 2).unwrap(), pins[..2]);
        assert_eq!(after(&pins[0], 2), pins[1..]);
        assert_eq!(after(&pins[0], 1), pins[1..2]);
        assert_eq!(after(&pins[2], 2), []);
        assert_eq!(
            store.read(&Key::Pin(pins[1].key())).unwrap(),
            Some(Record::Pin(pins[1].clone()))
        );
        let delete = Transaction::new(
            vec![Compare::revision(Key::Stream(one.id), one.revision)],
            vec![Write::DeleteStream(one.id)],
        );
        store.commit(delete).unwrap();
        pins.retain(|pin| pin.stream == other.id);
        assert_eq!(store.pins(None).unwrap(), pins);
        assert_eq!(store.load().unwrap().pins, pins);
        // A stream under the same name is another one.
        let (again, _) = store.create_stream(stream("a"), 7).unwrap();
        assert_eq!(store.pins(Some(again.id)).unwrap(), []);
        let gone = pin(one.id, "chk-1");
        assert!(matches!(
            assert_conflict(put(&*store, &gone)),
            Conflict::Absent { .. }
        ));
    });
}

#[test]
fn a_pin_is_replaced_and_deleted_by_whoever_knows_it() {
    on_each_store(|store| {
        let (of, _) = store.create_stream(stream("a"), 7).unwrap();
        let mut made = pin(of.id, "chk-1");
        made.revision = put(&*store, &made).unwrap().revision;
        assert_conflict(put(&*store, &pin(of.id, "chk-1")));
        let unguarded = Transaction::new(vec![], vec![Write::PutPin(made.clone())]);
        assert_invalid(store.commit(unguarded), "revision");
        made.lost = Some(PinLoss {
            streamlet: StreamletId(1),
            lane: LaneId(0),
            ordinal: 7,
            cause: LossCause::Bytes,
            at_ms: 8,
        });
        made.policy = PinPolicy::Warn;
        made.revision = put(&*store, &made).unwrap().revision;
        assert_eq!(store.pins(None).unwrap(), [made.clone()]);
        let changes: [(Change, &str); 4] = [
            (|pin| pin.max_bytes = 0, "a bound"),
            (|pin| pin.positions = vec![0; 100_000], "100000 positions"),
            (|pin| pin.positions[0] = u64::MAX, "an ordinal is above"),
            (|pin| pin.job = "\u{7}".to_owned(), "control character"),
        ];
        for (change, problem) in changes {
            let mut wrong = made.clone();
            change(&mut wrong);
            assert_invalid(put(&*store, &wrong), problem);
        }
        let long = pin(of.id, &"n".repeat(MAX_PIN_NAME + 1));
        assert_invalid(put(&*store, &long), "cannot be named");
        let delete = |revision| {
            let compare = Compare::revision(Key::Pin(made.key()), revision);
            let write = Write::DeletePin(made.key());
            store.commit(Transaction::new(vec![compare], vec![write]))
        };
        assert_conflict(delete(made.revision - 1));
        delete(made.revision).unwrap();
        assert_eq!(store.pins(None).unwrap(), []);
        // A comparison that it does not exist deletes nothing.
        assert_invalid(delete(0), "compared to be absent");
    });
}
