//! Two-phase commit of Kafka's clients (KIP-939), by hand.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, DescribeTransactionsRequest,
    DescribeTransactionsResponse, FetchResponse, InitProducerIdRequest, InitProducerIdResponse,
    ProducerId,
};
use kafka_protocol::protocol::StrBytes;

use crate::common::{Client, PATIENCE, World};
use crate::fetching::{partition, request};
use crate::transactions::{again, end, id_of, join, stamp_of};

const NONE: (i64, i16) = (-1, -1);

/// How an instance of a producer begins.
#[derive(Clone, Copy, Default)]
struct Begin {
    /// Its transactions have no timeout.
    enable: bool,
    /// It keeps what is open.
    keep: bool,
}

/// The error, what the producer has from then on, and what the transaction has that it keeps.
async fn begin(client: &mut Client, id: &str, how: Begin) -> (i16, (i64, i16), (i64, i16)) {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(id_of(id)))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
        .with_enable_2_pc(how.enable)
        .with_keep_prepared_txn(how.keep);
    loop {
        let begun: InitProducerIdResponse = client.init_producer_id(6, &request).await;
        if !again(begun.error_code) {
            return (
                begun.error_code,
                (begun.producer_id.0, begun.producer_epoch),
                (
                    begun.ongoing_txn_producer_id.0,
                    begun.ongoing_txn_producer_epoch,
                ),
            );
        }
    }
}

/// State, producer id, epoch and timeout, as Kafka's tools are told.
async fn described(client: &mut Client, id: &str) -> (String, (i64, i16), i32) {
    let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id_of(id)]);
    let told: DescribeTransactionsResponse =
        client.call(ApiKey::DescribeTransactions, 0, &request).await;
    let of = &told.transaction_states[0];
    assert_eq!(of.error_code, 0);
    (
        of.transaction_state.to_string(),
        (of.producer_id.0, of.producer_epoch),
        of.transaction_timeout_ms,
    )
}

/// What readers of what is committed find: where they stop, and how many aborted transactions there are before that.
async fn stable(client: &mut Client, offset: i64) -> (i64, usize) {
    let request = request("t", vec![partition(0, offset)]).with_isolation_level(1);
    let reply: FetchResponse = client.call(ApiKey::Fetch, 11, &request).await;
    let of = &reply.responses[0].partitions[0];
    assert_eq!(of.error_code, 0);
    let aborted = of.aborted_transactions.as_ref();
    (of.last_stable_offset, aborted.map_or(0, Vec::len))
}

/// Waits until the last stable offset is there; how many aborted transactions are from one offset up to it.
async fn stable_at(client: &mut Client, from: i64, offset: i64) -> usize {
    let waiting = async {
        loop {
            let (at, aborted) = stable(client, from).await;
            assert!(at <= offset, "readers are at {at}");
            if at == offset {
                return aborted;
            }
            tokio::task::yield_now().await;
        }
    };
    let waiting = tokio::time::timeout(PATIENCE, waiting);
    waiting.await.expect("readers still wait")
}

/// A broker that lets clients do it.
async fn world() -> World {
    let world = World::with(|config| config.transactions.two_phase_commit = true).await;
    world.topic("t", 2);
    world
}

const PREPARES: Begin = Begin {
    enable: true,
    keep: false,
};
const KEEPS: Begin = Begin {
    enable: true,
    keep: true,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_later_instance_ends_what_the_one_before_has_prepared() {
    let mut world = world().await;
    // Ordinals: a record and a marker for each transaction, two in each round.
    for (round, committed) in [(0, true), (1, false), (2, true)] {
        let mut client = world.client().await;
        let (code, who, ongoing) = begin(&mut client, "p", PREPARES).await;
        assert_eq!((code, ongoing), (0, NONE));
        assert_eq!(join(&mut client, "p", 0, stamp_of(who, 0)).await, 0);
        // It is gone, and so is the broker.
        drop(client);
        world.broker.shutdown().await;
        world = World::at(world.dir, |config| {
            config.transactions.two_phase_commit = true;
        })
        .await;
        let mut client = world.client().await;
        let next = (who.0, who.1 + 1);
        assert_eq!(begin(&mut client, "p", KEEPS).await, (0, next, who));
        // Asked again: its answer was lost.
        let next = (who.0, who.1 + 2);
        assert_eq!(begin(&mut client, "p", KEEPS).await, (0, next, who));
        let no_timeout = i32::MAX;
        assert_eq!(
            described(&mut client, "p").await,
            ("Ongoing".to_owned(), who, no_timeout)
        );
        let fenced = ResponseError::ProducerFenced.code();
        for old in [who, (who.0, who.1 + 1)] {
            assert_eq!(end(&mut client, "p", old, !committed).await, (fenced, NONE));
        }
        // Nothing joins it any more, in a partition that has a part of it and in another one.
        let not_open = ResponseError::InvalidTxnState.code();
        let late = ResponseError::InvalidProducerEpoch.code();
        assert_eq!(join(&mut client, "p", 1, stamp_of(next, 0)).await, not_open);
        assert_eq!(join(&mut client, "p", 1, stamp_of(who, 0)).await, late);
        let from = round * 4;
        assert_eq!(stable(&mut client, from).await.0, from);

        let then = (next.0, next.1 + 1);
        assert_eq!(end(&mut client, "p", next, committed).await, (0, then));
        assert_eq!(end(&mut client, "p", next, committed).await, (0, then));
        let aborted = usize::from(!committed);
        assert_eq!(stable_at(&mut client, from, from + 2).await, aborted);
        // The next transaction has the epoch that its end was answered with.
        assert_eq!(join(&mut client, "p", 0, stamp_of(then, 0)).await, 0);
        assert_eq!(join(&mut client, "p", 0, stamp_of(next, 0)).await, late);
        let last = (then.0, then.1 + 1);
        assert_eq!(end(&mut client, "p", then, true).await, (0, last));
        assert_eq!(stable_at(&mut client, from, from + 4).await, aborted);
        // Nothing is open, so there is nothing to keep or to end.
        let (code, _, ongoing) = begin(&mut client, "p", KEEPS).await;
        assert_eq!((code, ongoing), (0, NONE));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_ends_what_nobody_wants_by_beginning_anew() {
    let world = world().await;
    let mut client = world.client().await;
    let (_, who, _) = begin(&mut client, "p", PREPARES).await;
    assert_eq!(join(&mut client, "p", 0, stamp_of(who, 0)).await, 0);
    let (code, keeper, ongoing) = begin(&mut client, "p", KEEPS).await;
    assert_eq!((code, ongoing), (0, who));
    assert_eq!(stable(&mut client, 0).await.0, 0);
    let (code, anew, ongoing) = begin(&mut client, "p", Begin::default()).await;
    assert_eq!((code, ongoing), (0, NONE));
    assert!(anew > keeper);
    let fenced = ResponseError::ProducerFenced.code();
    assert_eq!(end(&mut client, "p", keeper, true).await, (fenced, NONE));
    assert_eq!(stable_at(&mut client, 0, 2).await, 1);
    let (state, _, timeout) = described(&mut client, "p").await;
    assert_eq!((&state[..], timeout), ("Empty", 60_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_allow_two_phase_commit_and_without_it_nothing_changes() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    let told: ApiVersionsResponse = client
        .call(
            ApiKey::ApiVersions,
            3,
            &ApiVersionsRequest::default()
                .with_client_software_name(StrBytes::from_static_str("s"))
                .with_client_software_version(StrBytes::from_static_str("1")),
        )
        .await;
    let mut all = told.api_keys.iter();
    let of = all.find(|api| api.api_key == ApiKey::InitProducerId as i16);
    assert_eq!(of.map(|api| api.max_version), Some(6));
    // Off by default, as with Kafka, and told as Kafka tells it.
    let denied = ResponseError::TransactionalIdAuthorizationFailed.code();
    for how in [PREPARES, KEEPS] {
        assert_eq!(begin(&mut client, "p", how).await, (denied, NONE, NONE));
    }
    // What keeps the timeout needs no permission.
    let keeps = Begin {
        enable: false,
        keep: true,
    };
    let (code, who, ongoing) = begin(&mut client, "p", keeps).await;
    assert_eq!((code, ongoing), (0, NONE));
    assert_eq!(join(&mut client, "p", 0, stamp_of(who, 0)).await, 0);
    let (_, _, timeout) = described(&mut client, "p").await;
    assert_eq!(timeout, 60_000);
    let next = (who.0, who.1 + 1);
    assert_eq!(begin(&mut client, "p", keeps).await, (0, next, who));
    assert_eq!(end(&mut client, "p", next, true).await.0, 0);
    assert_eq!(stable_at(&mut client, 0, 2).await, 0);
}
