//! The right to transactions without a timeout (KIP-939).

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, TransactionalId};
use kera_metadata::access::{Kind, Operation};

use crate::common::{Client, World};
use crate::{allow, deny, enforce, words};

/// With which error a producer begins.
async fn begin(client: &mut Client, enable: bool, keep: bool) -> i16 {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(TransactionalId(words("t"))))
        .with_transaction_timeout_ms(1000)
        .with_enable_2_pc(enable)
        .with_keep_prepared_txn(keep);
    loop {
        let begun: InitProducerIdResponse = client.init_producer_id(6, &request).await;
        match ResponseError::try_from_code(begun.error_code) {
            Some(
                ResponseError::CoordinatorLoadInProgress | ResponseError::CoordinatorNotAvailable,
            ) => {}
            _ => return begun.error_code,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_without_a_timeout_need_a_right_of_their_own() {
    let world = World::with(|config| {
        enforce(config);
        config.transactions.two_phase_commit = true;
    })
    .await;
    let mut client = world.client().await;
    let denied = ResponseError::TransactionalIdAuthorizationFailed.code();
    let id = Kind::TransactionalId;
    allow(&world, id, Operation::TwoPhaseCommit).await;
    assert_eq!(
        begin(&mut client, true, false).await,
        denied,
        "write is needed too"
    );
    assert_eq!(begin(&mut client, false, true).await, denied);
    allow(&world, id, Operation::Write).await;
    for (enable, keep) in [(false, false), (false, true), (true, false), (true, true)] {
        assert_eq!(begin(&mut client, enable, keep).await, 0);
    }
    // Without it whatever has a timeout goes on.
    deny(&world, id, Operation::TwoPhaseCommit).await;
    for (enable, keep) in [(false, false), (false, true), (true, false), (true, true)] {
        let code = if enable { denied } else { 0 };
        assert_eq!(begin(&mut client, enable, keep).await, code);
    }
}
