//! Listeners with names: by which of them a client has come in, by that it is sent on to every broker.

use kera_broker::config::{ListenerName, NamedAddress};

use super::*;

fn address(name: &str) -> NamedAddress {
    NamedAddress {
        name: Some(ListenerName::new(name).expect("a name")),
        address: "127.0.0.1:0".to_owned(),
    }
}

fn told(name: &str, broker: u32) -> NamedAddress {
    NamedAddress {
        address: format!("{name}{broker}.example:9092"),
        ..address(name)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_the_addresses_of_their_listener_at_all_brokers() {
    let cluster = Cluster::with(|config| {
        let id = config.cluster.broker_id.expect("it has a number");
        let mut names = vec!["inner", "outer"];
        if id == 2 {
            // Names count, and not the order.
            names.reverse();
        }
        if id == 3 {
            // Nobody who comes from outside is sent to its other listener.
            names.pop();
        }
        config.kafka.listen = names.iter().map(|name| address(name)).collect();
        config.kafka.advertise = names.iter().map(|name| told(name, id)).collect();
    })
    .await;
    cluster.topic("t").await;
    for (name, known) in [("inner", &[1, 2, 3][..]), ("outer", &[1, 2])] {
        for (broker, _) in &cluster.brokers[..2] {
            let listeners = kera_kafka_shim::start(broker.shared().clone()).await;
            let listen = &broker.shared().config.kafka.listen;
            let number = listen.iter().position(|one| *one == address(name));
            let at = listeners.unwrap().addresses[number.expect("it listens there")];
            let mut client = Client::connect(at).await;
            let hosts: Vec<_> = known
                .iter()
                .map(|id| format!("{name}{id}.example"))
                .collect();
            let response = metadata(&mut client, "t").await;
            let brokers = response.brokers.iter().map(|one| one.host.to_string());
            assert_eq!(brokers.collect::<Vec<_>>(), hosts, "{name}");
            // Who is not reached leads nothing, as far as this client knows.
            let leaders = leaders(&response);
            let led = leaders.values().map(|(id, _)| *id).collect::<BTreeSet<_>>();
            let away = if name == "outer" { Some(-1) } else { None };
            assert_eq!(led, known.iter().copied().chain(away).collect());
            let request = DescribeClusterRequest::default();
            let described: DescribeClusterResponse =
                client.call(ApiKey::DescribeCluster, 0, &request).await;
            let brokers = described.brokers.iter().map(|one| one.host.to_string());
            assert_eq!(brokers.collect::<Vec<_>>(), hosts, "{name}");
            for group in ["a", "b", "c", "d", "e", "f"] {
                let key = vec![words(group)];
                let request = FindCoordinatorRequest::default().with_coordinator_keys(key);
                let reply: FindCoordinatorResponse =
                    client.call(ApiKey::FindCoordinator, 4, &request).await;
                let found = &reply.coordinators[0];
                let host = found.host.to_string();
                assert!(
                    found.error_code != 0 || hosts.contains(&host),
                    "{name}: {host}"
                );
            }
        }
    }
}
