//! What a broker that worked alone has recorded goes into etcd: whole, once, and over crashes.
#![cfg(feature = "etcd")]

mod support;

use std::time::Duration;

use kera_metadata::*;
use support::*;
use uuid::Uuid;

const FIRST: ImportOptions = ImportOptions {
    resumed: false,
    without_groups: false,
};
const RESUMED: ImportOptions = ImportOptions {
    resumed: true,
    ..FIRST
};

fn broker(id: u32) -> BrokerRecord {
    BrokerRecord {
        id,
        address: "127.0.0.1:7600".into(),
        store_id: Uuid::from_u128(id.into()),
        boot_id: Uuid::from_u128(1),
        started_ms: 1,
        version: "0.1".into(),
        role: Default::default(),
        restore: 0,
        revision: 0,
    }
}

fn settings(broker: Option<u32>, value: &str) -> Write {
    Write::PutSettings(SettingsRecord {
        broker,
        values: [("log.level".to_owned(), value.to_owned())].into(),
        ..SettingsRecord::default()
    })
}

fn rules(user: &str) -> Write {
    let rule = Rule {
        kind: access::Kind::Stream,
        name: "a".to_owned(),
        pattern: access::Pattern::Literal,
        principal: format!("User:{user}"),
        host: access::ANY.to_owned(),
        operation: access::Operation::Read,
        permission: access::Permission::Allow,
    };
    let role = |name: &str, members: &[&str]| access::Role {
        name: name.to_owned(),
        members: members.iter().map(|one| (*one).to_owned()).collect(),
    };
    Write::PutRules(RulesRecord {
        rules: vec![rule],
        roles: vec![role("readers", &[user])],
        revision: 0,
    })
}

/// The store of broker `id`, which worked alone: streams `a` and `b` with closed groups and one that a crash left
/// open, log starts, wide stream `c`, a stream that was deleted after many starts, settings and producer ids.
fn alone(id: u32) -> MemoryStore {
    let store = MemoryStore::new();
    let commit = |compare, write| store.commit(Transaction::new(compare, write)).unwrap();
    let compare = Compare::revision(Key::Broker(id), 0);
    commit(vec![compare], vec![Write::PutBroker(broker(id))]);
    let (gone, _) = store.create_stream(stream("gone"), id).unwrap();
    let mut copied = stream("b");
    copied.config.replicas = 2;
    for record in [stream("a"), copied] {
        let (_, streamlets) = store.create_stream(record, id).unwrap();
        let of = &streamlets[0];
        store.commit(put_group(of, open_group(of, 1, 0))).unwrap();
        let of = store.streamlet(of.stream, of.streamlet).unwrap().unwrap();
        let first = store.group(open_group(&of, 1, 0).key()).unwrap().unwrap();
        let key = first.lane_key();
        store
            .commit(put_group(&of, closed(&first, 10, 1000)))
            .unwrap();
        store.commit(put_group(&of, open_group(&of, 2, 1))).unwrap();
        let start = Write::PutLaneStart { key, ordinal: 4 };
        commit(vec![Compare::epoch(&of)], vec![start]);
        let pin = PinRecord {
            stream: of.stream,
            name: "savepoint".to_owned(),
            job: "billing".to_owned(),
            owner: "User:ann".to_owned(),
            created_ms: 1,
            positions: vec![4, 0],
            max_age_ms: 1000,
            max_bytes: 1000,
            policy: PinPolicy::Wait,
            lost: None,
            revision: 0,
        };
        let compare = Compare::revision(Key::Pin(pin.key()), 0);
        commit(vec![compare], vec![Write::PutPin(pin)]);
    }
    let config = StreamConfig {
        streamlets: 300,
        ..StreamConfig::default()
    };
    store
        .create_stream(StreamRecord::new("c", config, 1), id)
        .unwrap();
    for _ in 0..3 {
        store.bump_epochs(id).unwrap();
    }
    store.commit(delete_stream(&gone)).unwrap();
    for broker in [None, Some(id)] {
        let revision = 0;
        commit(
            vec![Compare::revision(Key::Settings(broker), revision)],
            vec![settings(broker, "warn")],
        );
    }
    commit(vec![Compare::revision(Key::Rules, 0)], vec![rules("ann")]);
    store.allocate_producer_ids(1000).unwrap();
    store
}

/// An image without what every store has of its own.
fn bare(mut image: Image) -> Image {
    image.cluster = Uuid::nil();
    image.revision = 0;
    image.brokers.iter_mut().for_each(|r| r.revision = 0);
    image.streams.iter_mut().for_each(|r| r.revision = 0);
    image.streamlets.iter_mut().for_each(|r| r.revision = 0);
    image.groups.iter_mut().for_each(|r| r.revision = 0);
    image.lane_starts.iter_mut().for_each(|r| r.revision = 0);
    image.settings.iter_mut().for_each(|r| r.revision = 0);
    image.rules.iter_mut().for_each(|r| r.revision = 0);
    image.pins.iter_mut().for_each(|r| r.revision = 0);
    image
}

/// An empty cluster, beside others in one etcd.
fn beside(etcd: &etcd::Etcd, name: &str) -> EtcdStore {
    let address = format!("{}/{name}", etcd.address());
    EtcdStore::init(&address, patient()).unwrap();
    EtcdStore::open(&address, patient()).unwrap()
}

/// The only thing that stands in the way of an import.
fn problem(store: &EtcdStore, own: &Image) -> String {
    let plan = store.plan_import(own, FIRST).unwrap();
    let [problem] = plan.problems.as_slice() else {
        panic!("{:?}", plan.problems);
    };
    let refused = store.import(own, FIRST, &mut |_| Ok(())).unwrap_err();
    assert!(refused.to_string().contains(problem), "{refused}");
    problem.clone()
}

#[test]
fn an_import_that_ends_anywhere_is_gone_on_with() {
    let Some(etcd) = etcd::Etcd::start() else {
        return;
    };
    let own = alone(1).load().unwrap();
    assert!(own.groups.iter().any(|g| g.state == GroupState::Open));
    assert!(own.counters.len() == 2 && own.settings.len() == 2);
    let mut transactions = 0;
    loop {
        let store = beside(&etcd, &transactions.to_string());
        let mut done = 0;
        let ended = store.import(&own, FIRST, &mut |_| {
            done += 1;
            if done > transactions {
                return Err(MetadataError::Closed);
            }
            Ok(())
        });
        // Whoever loads sees whole streams only.
        let half = store.load().unwrap();
        for stream in &half.streams {
            assert_eq!(
                half.streamlets_of(stream.id).len() as u32,
                stream.config.streamlets
            );
        }
        assert!(
            half.groups
                .iter()
                .all(|g| half.streams.iter().any(|s| s.id == g.stream))
        );
        let is_whole = ended.is_ok();
        let mut last = None;
        let plan = store.import(&own, RESUMED, &mut |progress| {
            last = Some(progress);
            Ok(())
        });
        let plan = plan.unwrap();
        assert_eq!(
            plan.streams.iter().all(|s| s.is_there),
            half.streams.len() == 3
        );
        if let Some(last) = last {
            assert_eq!(last.written, last.of);
        }
        assert_eq!(bare(store.load().unwrap()), bare(own.clone()));
        if is_whole {
            break;
        }
        transactions += 1;
    }
    assert!(transactions > 15, "{transactions}");
    // Who creates a stream now begins above all epochs that were.
    let store = beside(&etcd, "floor");
    store.import(&own, FIRST, &mut |_| Ok(())).unwrap();
    let (_, streamlets) = store.create_stream(stream("gone"), 1).unwrap();
    let (_, floor) = own.counters[1];
    assert_eq!(u64::from(streamlets[0].epoch.0), floor + 1);
    assert!(store.allocate_producer_ids(1).unwrap().start > 1000);
}

#[test]
fn a_second_broker_is_imported_beside_the_first() {
    let Some(etcd) = cluster() else { return };
    let store = opened(&etcd);
    let first = alone(1).load().unwrap();
    store.import(&first, FIRST, &mut |_| Ok(())).unwrap();
    let two = MemoryStore::new();
    let compare = Compare::revision(Key::Broker(2), 0);
    two.commit(Transaction::new(
        vec![compare],
        vec![Write::PutBroker(broker(2))],
    ))
    .unwrap();
    two.create_stream(stream("of-two"), 2).unwrap();
    let second = two.load().unwrap();
    store.import(&second, FIRST, &mut |_| Ok(())).unwrap();
    let both = store.load().unwrap();
    assert_eq!(both.brokers.len(), 2);
    assert_eq!(both.streams.len(), 4);
    // Its epochs are above those of streams that the first deleted; nothing else changed.
    let id = second.streams[0].id;
    let floor = first.counters[1].1;
    for streamlet in both.streamlets_of(id) {
        assert_eq!(u64::from(streamlet.epoch.0), floor + 1);
    }
    // The same once more is no other content.
    let again = store.plan_import(&second, FIRST).unwrap();
    assert!(again.problems.is_empty() && again.streams[0].is_there);
}

#[test]
fn an_import_says_what_stands_in_its_way() {
    let Some(etcd) = etcd::Etcd::start() else {
        return;
    };
    let own = alone(1).load().unwrap();

    let store = beside(&etcd, "alive");
    let member = store.join(live(7), Duration::from_secs(60)).unwrap();
    let said = problem(&store, &own);
    assert!(said.contains("broker 7") && said.contains("stop"), "{said}");
    member.leave();
    // One that starts in the middle is noticed by the next transaction.
    let mut member = None;
    let error = store.import(&own, FIRST, &mut |progress| {
        if progress.written > 0 && member.is_none() {
            member = Some(store.join(live(7), Duration::from_secs(60)).unwrap());
        }
        Ok(())
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("started during the import"), "{error}");
    drop(member);
    store.import(&own, RESUMED, &mut |_| Ok(())).unwrap();

    let store = beside(&etcd, "name");
    store.create_stream(stream("a"), 7).unwrap();
    let said = problem(&store, &own);
    assert!(said.contains("another stream `a`"), "{said}");

    let store = beside(&etcd, "number");
    let other = BrokerRecord {
        store_id: Uuid::from_u128(99),
        ..broker(1)
    };
    let put = |record: BrokerRecord| {
        let (id, revision) = (record.id, 0);
        let compare = vec![Compare::revision(Key::Broker(id), revision)];
        Transaction::new(compare, vec![Write::PutBroker(record)])
    };
    store.commit(put(other)).unwrap();
    let said = problem(&store, &own);
    assert!(said.contains("another broker 1"), "{said}");
    let store = beside(&etcd, "directory");
    store
        .commit(put(BrokerRecord { id: 5, ..broker(1) }))
        .unwrap();
    let said = problem(&store, &own);
    assert!(said.contains("that of broker 5"), "{said}");

    let store = beside(&etcd, "settings");
    let compare = Compare::revision(Key::Settings(None), 0);
    store
        .commit(Transaction::new(
            vec![compare],
            vec![settings(None, "debug")],
        ))
        .unwrap();
    let said = problem(&store, &own);
    assert!(said.contains("settings of all brokers"), "{said}");

    let store = beside(&etcd, "rules");
    let compare = Compare::revision(Key::Rules, 0);
    store
        .commit(Transaction::new(vec![compare], vec![rules("bob")]))
        .unwrap();
    let said = problem(&store, &own);
    assert!(said.contains("rules of access"), "{said}");

    let store = beside(&etcd, "content");
    store.import(&own, FIRST, &mut |_| Ok(())).unwrap();
    let group = own.groups.iter().find(|g| g.is_closed()).unwrap();
    let there = store.group(group.key()).unwrap().unwrap();
    let of = store.streamlet(group.stream, group.streamlet).unwrap();
    store.commit(delete_group(&of.unwrap(), &there)).unwrap();
    let said = problem(&store, &own);
    assert!(said.contains("other content"), "{said}");
}

#[test]
fn the_groups_of_a_second_broker_are_left_behind_if_there_are_none_or_if_that_is_asked_for() {
    let Some(etcd) = etcd::Etcd::start() else {
        return;
    };
    let of = |id: u32, held: bool| {
        let store = MemoryStore::new();
        let compare = Compare::revision(Key::Broker(id), 0);
        store
            .commit(Transaction::new(
                vec![compare],
                vec![Write::PutBroker(broker(id))],
            ))
            .unwrap();
        let (_, streamlets) = store.create_stream(stream("_kera_groups"), id).unwrap();
        if held {
            let of = &streamlets[0];
            store.commit(put_group(of, open_group(of, 1, 0))).unwrap();
        }
        store.load().unwrap()
    };
    let first = of(1, true);
    let store = beside(&etcd, "empty");
    store.import(&first, FIRST, &mut |_| Ok(())).unwrap();
    let plan = store.import(&of(2, false), FIRST, &mut |_| Ok(())).unwrap();
    assert!(plan.streams[0].is_left && !plan.streams[0].is_there);
    let both = store.load().unwrap();
    assert_eq!(both.brokers.len(), 2);
    assert_eq!(both.streams.len(), 1);
    assert_eq!(both.groups.len(), 1);

    let store = beside(&etcd, "held");
    store.import(&first, FIRST, &mut |_| Ok(())).unwrap();
    let second = of(2, true);
    let said = problem(&store, &second);
    assert!(said.contains("--without-groups"), "{said}");
    let without = ImportOptions {
        without_groups: true,
        ..FIRST
    };
    let plan = store.import(&second, without, &mut |_| Ok(())).unwrap();
    assert!(plan.streams[0].is_left);
    assert_eq!(store.load().unwrap().streams[0].id, first.streams[0].id);
    // Where the cluster has none they come along all the same.
    let store = beside(&etcd, "alone");
    store.import(&second, without, &mut |_| Ok(())).unwrap();
    assert_eq!(store.load().unwrap().groups.len(), 1);
}

#[test]
fn a_store_of_no_broker_has_nothing_to_import() {
    let Some(etcd) = cluster() else { return };
    let error = opened(&etcd)
        .plan_import(&Image::default(), FIRST)
        .unwrap_err();
    assert!(error.to_string().contains("never started"), "{error}");
}
