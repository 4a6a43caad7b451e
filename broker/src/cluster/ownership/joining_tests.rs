//! What brokers tell each other of themselves, and where they cannot reach each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kera_rpc::Client;

use super::*;
use crate::config::{ListenerName, NamedAddress};

#[tokio::test(flavor = "multi_thread")]
async fn brokers_on_several_machines_are_to_tell_addresses_that_others_reach() {
    let trio = Trio::start_of(2, None).await;
    let view = trio.view(3);
    let mut config = trio.config(3);
    config.cluster.host = Some("far".into());
    let Err(refused) = Broker::start_sharing(config, Some(view)).await else {
        panic!("its copies would lie at the machine of those that send them");
    };
    let BrokerError::Astray { broker: 3, .. } = &refused else {
        panic!("refused for something else: {refused}");
    };
    let left = |id: &u32| !trio.store.living().borrow().contains_key(id);
    assert!(left(&3), "it gives its place back");

    // Two that joined at the same moment may both be there.
    let join = |id: u32, replication: &str| {
        let incarnation = Incarnation {
            store_id: Uuid::from_u128(id.into()),
            boot_id: Uuid::nil(),
        };
        let live = LiveBroker {
            host: "far".into(),
            replication_address: replication.into(),
            ..LiveBroker::new(id, incarnation)
        };
        let seat = trio.store.join(live, Duration::from_secs(60));
        seat.expect("nobody has that number")
    };
    let _astray = join(8, "127.0.0.1:1");
    let _reached = join(9, "192.0.2.9:1");
    for id in 1..=2 {
        let cluster = &trio
            .shared(id)
            .clustered
            .as_ref()
            .expect("it has peers")
            .peers;
        let knows = |id: u32| cluster.peers().iter().any(|peer| peer.id == id);
        until(|| knows(9)).await;
        assert!(knows(3 - id) && !knows(8), "{:?}", cluster.peers());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_for_kafkas_clients_are_told_until_they_are_known() {
    let trio = Trio::start_of(2, None).await;
    trio.store.refuse_descriptions(2);
    let (inner, outer) = ("192.0.2.1:9092".to_owned(), "outer.example:9093".to_owned());
    let told = vec![
        (None, inner.clone()),
        (Some("outer".to_owned()), outer.clone()),
    ];
    trio.shared(1).data.directory.announce_kafka(told);
    let known = || {
        let found = trio.shared(2).data.directory.broker(1);
        let named = [("outer".to_owned(), outer.clone())];
        found.is_some_and(|found| {
            found.kafka == [inner.clone(), outer.clone()] && found.kafka_named == named
        })
    };
    until(known).await;
    assert_eq!(trio.store.refusals_left(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn native_addresses_with_names_are_told_to_the_others() {
    let trio = Trio::start_of(2, None).await;
    let view = trio.view(3);
    let mut config = trio.config(3);
    let named = |name: &str, address: &str| NamedAddress {
        name: Some(ListenerName::new(name).expect("a name")),
        address: address.to_owned(),
    };
    config.server.listen.first = named("inner", "127.0.0.1:0");
    config.server.listen.more = vec![named("outer", "127.0.0.1:0")];
    config.server.advertise = vec![named("outer", "outer.example:7601")];
    let third = Broker::start_sharing(config, Some(view)).await;
    let third = third.unwrap_or_else(|error| panic!("it joins: {error}"));
    let first = third.local_addr().to_string();
    let at_first = |name: Option<&str>| {
        let found = trio.shared(1).data.directory.broker(3);
        found.and_then(|found| found.native_at(name).map(str::to_owned))
    };
    until(|| at_first(None).as_ref() == Some(&first)).await;
    assert_eq!(at_first(Some("inner")), Some(first));
    assert_eq!(
        at_first(Some("outer")).as_deref(),
        Some("outer.example:7601")
    );
    assert_eq!(at_first(Some("partners")), None);

    // What clients hear that come in there: of brokers without names their only address.
    let stream = trio.create(1, "clicks").await;
    for number in 0..3 {
        trio.assign(stream, number, number + 1);
    }
    let plain = |id: u32| {
        let found = third.shared().data.directory.broker(id);
        found.expect("it lives").address
    };
    let told = [
        plain(1),
        plain(2),
        third.local_addr().to_string(),
        "outer.example:7601".to_owned(),
    ];
    for (at, of_third) in third.local_addrs().iter().zip(&told[2..]) {
        let client = Client::connect_to(&at.to_string()).expect("an address");
        let request = v1::GetStreamRequest {
            name: "clicks".to_owned(),
        };
        let heard = loop {
            let found = client.call(request.clone()).await.expect("it is known");
            let heard = found
                .streamlets
                .into_iter()
                .map(|one| (one.broker, one.owner));
            let heard: Vec<_> = heard.collect();
            let is_known = |number: usize, one: &(Option<u32>, String)| {
                one.0 == Some(number as u32 + 1) && !one.1.is_empty()
            };
            if heard
                .iter()
                .enumerate()
                .all(|(number, one)| is_known(number, one))
            {
                break heard;
            }
            tokio::task::yield_now().await;
        };
        for (id, address) in heard {
            let expected = match id {
                Some(1) => &told[0],
                Some(2) => &told[1],
                _ => of_third,
            };
            assert_eq!(&address, expected, "broker {id:?} by {at}");
        }
    }
    third.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_and_a_directory_belong_to_one_broker() {
    let mut trio = Trio::start().await;
    let kept = trio.create(1, "kept").await;
    for number in 0..3 {
        let owner = trio.owner(1, kept, number).broker;
        let streamlet = trio.served(owner, kept, number).await;
        append_all(trio.shared(owner), &streamlet, 0..3).await;
    }
    trio.end(3).await;
    let left = files_below(trio.dirs[2].path());
    assert!(!left.is_empty());
    // The directory of broker 3 as broker 4.
    let view = trio.view(1);
    let mut config = trio.config(3);
    config.cluster.broker_id = Some(4);
    let started = Broker::start_sharing(config, Some(view)).await;
    let Err(refused) = started else {
        panic!("it is broker 3's");
    };
    assert!(refused.to_string().contains("broker 3"), "{refused}");
    // The refused broker has sealed none of the replicas that broker 3 keeps for others.
    assert!(
        files_below(trio.dirs[2].path()) == left,
        "files were changed"
    );
    // And alone.
    let started = Broker::start_sharing(trio.config(3), None).await;
    let Err(refused) = started else {
        panic!("it is a cluster's");
    };
    assert!(refused.to_string().contains("--cluster"), "{refused}");
    trio.begin(3).await;
}

/// Paths and bytes of all files below `dir` but locks, which tell who had them last.
fn files_below(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("it can be listed") {
        let path = entry.expect("it can be listed").path();
        match path.is_dir() {
            true => found.append(&mut files_below(&path)),
            false if path.ends_with("LOCK") => {}
            false => {
                found.insert(path.clone(), fs::read(&path).expect("it can be read"));
            }
        }
    }
    found
}
