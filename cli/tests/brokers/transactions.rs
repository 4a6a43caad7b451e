//! Transactions of a stream engine, whose coordinators are at several brokers.

use std::collections::BTreeSet;

use kera_producer::{AbortWhich, Admin, TransactionError, Transactions};
use kera_protocol::error::ErrorCode;

use super::*;

/// Nothing ends by itself.
const TIME: Duration = Duration::from_secs(600);

async fn producer_of(cluster: &Cluster, id: &str) -> Producer {
    Producer::builder()
        .bootstrap(cluster.bootstrap())
        .stream("s")
        .transactional_id(id)
        .transaction_timeout(TIME)
        .build()
        .await
        .unwrap()
}

/// Leaves a transaction of this id open, or prepared.
async fn leave(cluster: &Cluster, id: &str, is_prepared: bool) {
    let producer = producer_of(cluster, id).await;
    let transaction = producer.transaction().await.unwrap();
    transaction.append(&Record::of_value(b"x")).unwrap();
    producer.flush().await.unwrap();
    if is_prepared {
        transaction.prepare().await.unwrap();
    }
}

async fn open(client: &Client, prefix: &str) -> Vec<String> {
    let request = v1::ListOpenTransactionsRequest {
        prefix: prefix.to_owned(),
        ..Default::default()
    };
    let listed = client.call(request).await.unwrap().transactions;
    let ids = listed
        .into_iter()
        .map(|one| one.transaction.unwrap().transactional_id);
    ids.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_an_engine_left_open_is_aborted_by_its_prefix_whoever_coordinates_it() {
    let cluster = Cluster::start().await;
    let client = cluster.create().await;
    let told = Admin::new(client.clone()).cluster().await.unwrap();
    let racks: Vec<_> = told
        .brokers
        .iter()
        .map(|b| (b.id, b.rack.as_str()))
        .collect();
    assert_eq!(racks, [(1, "rack1"), (2, "rack2"), (3, "rack3")]);
    assert!((1..=3).contains(&told.answered_by), "{told:?}");
    assert!(
        told.streams >= 1 && told.streamlets >= STREAMLETS.into(),
        "{told:?}"
    );

    let mut coordinators = BTreeSet::new();
    for label in 1..=12 {
        let id = format!("job/0/{label}");
        leave(&cluster, &id, label <= 4).await;
        let request = v1::FindCoordinatorRequest {
            transactional_id: id,
            ..Default::default()
        };
        coordinators.insert(client.call(request).await.unwrap().broker_id);
    }
    leave(&cluster, "job/1/20", false).await;
    assert!(coordinators.len() > 1, "only {coordinators:?} coordinate");

    let all = Transactions::new(client.clone());
    let abort = async |which| {
        let aborted = all.abort_by_prefix("job/0/", which).await.unwrap();
        let ids = aborted.into_iter().map(|one| {
            one.outcome.unwrap();
            one.handle.transactional_id
        });
        ids.collect::<Vec<_>>()
    };
    let since = AbortWhich {
        label_above: Some(8),
        ..AbortWhich::default()
    };
    let late = ["job/0/10", "job/0/11", "job/0/12", "job/0/9"];
    assert_eq!(abort(since).await, late);
    assert!(abort(since).await.is_empty(), "they are aborted");

    // Page by page.
    let mut request = v1::AbortTransactionsRequest {
        prefix: "job/0/".into(),
        max_transactions: 3,
        ..Default::default()
    };
    let mut pages = Vec::new();
    loop {
        let page = client.call(request.clone()).await.unwrap();
        let ids = page.transactions.into_iter().map(|one| {
            assert_eq!(one.error, 0, "{}", one.message);
            one.transaction.unwrap().transactional_id
        });
        let ids: Vec<_> = ids.collect();
        request.after = ids.last().unwrap().clone();
        pages.push(ids);
        if !page.more {
            break;
        }
    }
    assert_eq!(
        pages,
        [vec!["job/0/5", "job/0/6", "job/0/7"], vec!["job/0/8"]]
    );
    assert_eq!(all.prepared("job/").await.unwrap().len(), 4, "they stay");
    let prepared = AbortWhich {
        prepared: true,
        ..AbortWhich::default()
    };
    let first = ["job/0/1", "job/0/2", "job/0/3", "job/0/4"];
    assert_eq!(abort(prepared).await, first);

    // One that still runs goes on with nothing: neither with what it has open nor with a next one.
    let earlier = producer_of(&cluster, "job/2/1").await;
    let transaction = earlier.transaction().await.unwrap();
    transaction.append(&Record::of_value(b"x")).unwrap();
    earlier.flush().await.unwrap();
    let which = AbortWhich::default();
    let aborted = all.abort_by_prefix("job/2/", which).await.unwrap();
    assert!(matches!(&aborted[..], [one] if one.outcome.is_ok()));
    let error = transaction.commit().await.unwrap_err();
    assert!(matches!(error, TransactionError::Aborted), "{error}");
    let error = earlier.transaction().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::FencedProducer), "{error}");

    assert_eq!(open(&client, "").await, ["job/1/20"]);
    let error = all.abort_by_prefix("", prepared).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InvalidArgument), "{error}");
}
