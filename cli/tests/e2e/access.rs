//! Rules of access at the native listener: every call and every frame of who has no right is denied.

use std::time::Duration;

use bytes::Bytes;
use kera_grpc::v1::access_client::AccessClient;
use kera_grpc::v1::clusters_client::ClustersClient;
use kera_grpc::v1::lanes_client::LanesClient;
use kera_grpc::v1::quotas_client::QuotasClient;
use kera_grpc::v1::transaction_tools_client::TransactionToolsClient;
use kera_grpc::v1::users_client::UsersClient;
use kera_grpc::wire_error_of_status;
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::FrameKind;
use kera_protocol::ids::StreamId;
use kera_protocol::v1::{self, CallMethod};
use serde_json::json;
use tonic::Status;
use tonic::transport::Endpoint;

use crate::common::Broker;
use crate::common::raw::{Raw, batch_of, frame_of, stream_id};

const ENFORCED: [&str; 4] = ["--acl-enabled", "true", "--acl-super-users", "User:admin"];

/// A broker that enforces the rules that were made before, with a stream.
fn enforcing(rules: &[&[&str]]) -> (Broker, Bytes) {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "secret"]);
    let id = stream_id(&broker, "secret");
    for rule in rules {
        let words: Vec<&str> = ["acl", "add"].iter().chain(*rule).copied().collect();
        broker.run(&words);
    }
    broker.stop();
    broker.set_flags(&ENFORCED);
    broker.restart();
    (broker, id)
}

fn named(which: &str) -> String {
    which.to_owned()
}

/// A request of each method that is about the stream and the group `secret`; `id` is the stream's.
fn request_of(method: CallMethod, id: &Bytes) -> Option<Vec<u8>> {
    let (name, group) = (named("secret"), named("secret"));
    macro_rules! of {
        ($message:ident { $($field:ident),* }) => {{
            let mut message = v1::$message::default();
            $(message.$field = $field;)*
            message.encode_to_vec()
        }};
    }
    let stream = name.clone();
    let transaction = Some(v1::TransactionHandle {
        transactional_id: name.clone(),
        ..Default::default()
    });
    Some(match method {
        CallMethod::Unspecified => return None,
        // These leave out what may not be seen.
        CallMethod::ListStreams | CallMethod::ListGroups | CallMethod::ListOpenTransactions => {
            return None;
        }
        CallMethod::GetStream => of!(GetStreamRequest { name }),
        CallMethod::CreateStream => v1::CreateStreamRequest {
            name: named("other"),
            config: None,
        }
        .encode_to_vec(),
        CallMethod::AlterStream => of!(AlterStreamRequest { name }),
        CallMethod::DeleteStream => of!(DeleteStreamRequest { name }),
        CallMethod::DescribeStream => of!(DescribeStreamRequest { name }),
        CallMethod::TrimStream => of!(TrimStreamRequest { name }),
        CallMethod::CompactStream => of!(CompactStreamRequest { name }),
        CallMethod::RecoverStream => of!(RecoverStreamRequest { name }),
        CallMethod::FindOrdinals => of!(FindOrdinalsRequest { name }),
        CallMethod::FindCopies => of!(FindCopiesRequest { name }),
        CallMethod::InitProducer => of!(InitProducerRequest { name }),
        CallMethod::FindCoordinator => of!(FindCoordinatorRequest { group }),
        CallMethod::Join => of!(JoinRequest { group, stream }),
        CallMethod::Heartbeat => of!(HeartbeatRequest { group }),
        CallMethod::Acquire => of!(AcquireRequest { group }),
        CallMethod::Commit => of!(CommitRequest { group }),
        CallMethod::Leave => of!(LeaveRequest { group }),
        CallMethod::DescribeGroup => of!(DescribeGroupRequest { group }),
        CallMethod::ResetGroup => of!(ResetGroupRequest { group }),
        CallMethod::DeleteGroup => of!(DeleteGroupRequest { group }),
        CallMethod::CommitPositions => of!(CommitPositionsRequest { group, stream }),
        CallMethod::SendPositions => of!(SendPositionsRequest { transaction, group }),
        CallMethod::GetGenerations => of!(GetGenerationsRequest { name }),
        CallMethod::CutLane => {
            let stream = id.clone();
            of!(CutLaneRequest { stream })
        }
        CallMethod::InitTransactions => {
            let transactional_id = name;
            of!(InitTransactionsRequest { transactional_id })
        }
        CallMethod::AddToTransaction => {
            let transactional_id = name;
            of!(AddToTransactionRequest { transactional_id })
        }
        CallMethod::PrepareTransaction => of!(PrepareTransactionRequest { transaction }),
        CallMethod::EndTransaction => of!(EndTransactionRequest { transaction }),
        CallMethod::ForgetTransaction => of!(ForgetTransactionRequest { transaction }),
        CallMethod::HeartbeatTransaction => {
            let transactional_id = name;
            of!(HeartbeatTransactionRequest { transactional_id })
        }
        // As brokers among themselves: otherwise what may not be aborted is left out.
        CallMethod::AbortTransactions => {
            let transactions = transaction.into_iter().collect();
            of!(AbortTransactionsRequest { transactions })
        }
        CallMethod::CreatePin => of!(CreatePinRequest { stream }),
        CallMethod::ListPins => of!(ListPinsRequest { stream }),
        CallMethod::DeletePin => of!(DeletePinRequest { stream }),
        CallMethod::DescribeCluster => v1::DescribeClusterRequest {}.encode_to_vec(),
        CallMethod::WatchLanes => {
            let stream = id.clone();
            of!(WatchLanesRequest { stream })
        }
    })
}

fn methods() -> impl Iterator<Item = CallMethod> {
    (1..).map_while(|number| CallMethod::try_from(number).ok())
}

fn call(raw: &mut Raw, method: CallMethod, body: &[u8]) -> Result<Bytes, WireError> {
    let request = v1::CallRequest {
        method: method.into(),
        deadline_ms: 0,
    };
    raw.send(&frame_of(FrameKind::Call, 1, &request, body));
    let frame = raw.next().expect("a call is answered");
    let told: v1::CallResponse = frame.message().expect("a reply");
    match told.error {
        0 => Ok(frame.body),
        number => Err(WireError::from_number(number, &told.message)),
    }
}

/// To who may not see a stream its id says nothing: the answer is that to an id that no stream has.
fn is_unknown(error: &WireError, id: &Bytes) {
    assert_eq!(error.code, ErrorCode::UnknownStream, "{error}");
    let id = StreamId::from_slice(id).expect("an id");
    let text = format!("no stream has id {id}; it may have been deleted: look its name up again");
    assert_eq!(error.message, text);
}

#[test]
fn every_call_is_denied_without_a_right_and_says_what_to_do() {
    let (broker, id) = enforcing(&[]);
    let mut raw = Raw::open(&broker);
    let mut denied = 0;
    for method in methods() {
        let Some(body) = request_of(method, &id) else {
            continue;
        };
        let error = call(&mut raw, method, &body).expect_err("it is denied");
        if matches!(method, CallMethod::CutLane | CallMethod::WatchLanes) {
            is_unknown(&error, &id);
            continue;
        }
        assert_eq!(error.code, ErrorCode::NotAuthorized, "{method:?}: {error}");
        let advice = "kera acl add --allow User:ANONYMOUS --operation";
        assert!(error.message.contains(advice), "{method:?}: {error}");
        denied += 1;
    }
    assert!(denied >= 28, "only {denied} methods");
    for method in [
        CallMethod::ListStreams,
        CallMethod::ListGroups,
        CallMethod::ListOpenTransactions,
    ] {
        let listed = call(&mut raw, method, &[]).expect("a list");
        assert!(listed.is_empty(), "{method:?}: nothing may be seen");
    }
}

#[test]
fn the_calls_that_are_no_frames_are_denied_as_well() {
    let (broker, id) = enforcing(&[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let denied = |status: Status| {
        let error = wire_error_of_status(&status).expect("the broker's error");
        assert_eq!(error.code, ErrorCode::NotAuthorized, "{error}");
    };
    runtime.block_on(async {
        let endpoint = Endpoint::new(format!("http://{}", broker.address())).unwrap();
        let channel = endpoint.connect().await.expect("it connects");
        let mut lanes = LanesClient::new(channel.clone());
        let mut clusters = ClustersClient::new(channel.clone());
        let mut access = AccessClient::new(channel.clone());
        let mut users = UsersClient::new(channel.clone());
        let mut quotas = QuotasClient::new(channel.clone());
        let mut transactions = TransactionToolsClient::new(channel);
        let watch = v1::WatchLanesRequest {
            stream: id.clone(),
            ..Default::default()
        };
        let hidden = lanes.watch_lanes(watch).await.expect_err("it is denied");
        let hidden = wire_error_of_status(&hidden).expect("the broker's error");
        is_unknown(&hidden, &id);
        macro_rules! denied_all {
            ($($stub:ident.$call:ident($request:ident { $($field:ident: $value:expr)? });)*) => {
                $({
                    #[allow(unused_mut)]
                    let mut request = v1::$request::default();
                    $(request.$field = $value;)?
                    denied($stub.$call(request).await.expect_err(stringify!($call)));
                })*
            };
        }
        denied_all! {
            lanes.cut_for_growth(CutForGrowthRequest { stream: id.clone() });
            lanes.give_up_growth(GiveUpGrowthRequest { stream: id.clone() });
            lanes.list_unended(ListUnendedRequest { stream: id.clone() });
            lanes.find_transactions(FindTransactionsRequest {});
            clusters.describe_cluster(DescribeClusterRequest {});
            clusters.plan_moves(PlanMovesRequest {});
            clusters.move_streamlet(MoveStreamletRequest {});
            clusters.set_draining(SetDrainingRequest {});
            clusters.describe_drain(DescribeDrainRequest {});
            clusters.plan_restart(PlanRestartRequest {});
            clusters.finalize_cluster(FinalizeClusterRequest { without_brokers: Vec::new() });
            access.list_rules(ListRulesRequest {});
            access.add_rules(AddRulesRequest {});
            access.remove_rules(RemoveRulesRequest {});
            access.list_roles(ListRolesRequest {});
            access.alter_role(AlterRoleRequest {});
            access.delete_role(DeleteRoleRequest {});
            users.list_users(ListUsersRequest {});
            users.put_user(PutUserRequest {});
            users.delete_user(DeleteUserRequest {});
            quotas.list_quotas(ListQuotasRequest {});
            quotas.alter_quota(AlterQuotaRequest {});
            transactions.describe_transaction(DescribeTransactionRequest {});
            transactions.abort_transaction(AbortTransactionRequest {});
            transactions.end_prepared(EndPreparedRequest {});
            transactions.end_lost(EndLostRequest {});
        }
    });
}

fn append(raw: &mut Raw, stream: &Bytes) -> u32 {
    let request = v1::AppendRequest {
        stream: stream.clone(),
        ..Default::default()
    };
    raw.send(&frame_of(FrameKind::Append, 2, &request, &batch_of(b"v")));
    raw.append_answer().1.error
}

fn read(raw: &mut Raw, stream: &Bytes, from_copy: bool) -> (u32, Bytes) {
    let request = v1::ReadRequest {
        stream: stream.clone(),
        max_bytes: 1 << 20,
        from_copy,
        ..Default::default()
    };
    raw.send(&frame_of(FrameKind::Read, 3, &request, &[]));
    let frame = raw.next().expect("a read is answered");
    let told: v1::ReadResponse = frame.message().expect("a reply");
    (told.error, frame.body)
}

#[test]
fn records_are_neither_stored_nor_told_without_a_right() {
    let denied = ErrorCode::NotAuthorized as u32;
    let unknown = ErrorCode::UnknownStream as u32;
    let (broker, id) = enforcing(&[]);
    let mut raw = Raw::open(&broker);
    // Nothing may be seen, and an id tells no name.
    assert_eq!(append(&mut raw, &id), unknown);
    assert_eq!(read(&mut raw, &id, false).0, unknown);
    assert_eq!(read(&mut raw, &id, true).0, unknown);
    let subscribe = v1::SubscribeRequest {
        subscription: 1,
        stream: id.clone(),
        credit_bytes: 1 << 20,
        ..Default::default()
    };
    raw.send(&frame_of(FrameKind::Subscribe, 4, &subscribe, &[]));
    let frame = raw.next().expect("it is answered");
    let told: v1::SubscribeResponse = frame.message().expect("a reply");
    assert_eq!(told.error, unknown);
    let named = StreamId::from_slice(&id).expect("an id");
    assert!(
        told.message
            .starts_with(&format!("no stream has id {named};")),
        "{}",
        told.message
    );
    let nothing = Bytes::from(vec![7; 16]);
    assert_eq!(append(&mut raw, &nothing), unknown);
    assert_eq!(read(&mut raw, &nothing, true).0, unknown);

    let producer = [
        "--allow",
        "User:ANONYMOUS",
        "--producer",
        "--stream",
        "secret",
    ];
    let (broker, id) = enforcing(&[&producer]);
    let mut raw = Raw::open(&broker);
    assert_eq!(append(&mut raw, &id), 0);
    assert_eq!(
        read(&mut raw, &id, false).0,
        denied,
        "writing is not reading"
    );

    let consumer = ["--allow", "User:*", "--consumer", "--stream-prefix", "sec"];
    let (broker, id) = enforcing(&[&producer, &consumer]);
    let mut raw = Raw::open(&broker);
    assert_eq!(append(&mut raw, &id), 0);
    let (error, bytes) = read(&mut raw, &id, false);
    assert_eq!(error, 0);
    assert!(!bytes.is_empty());
}

#[test]
fn an_operator_ends_transactions_with_the_right_to_alter_the_cluster() {
    let ends: [&[&str]; 2] = [
        &["transaction", "end", "secret", "--commit", "--yes"],
        &["transaction", "end", "--producer", "7", "--abort", "--yes"],
    ];
    let user = ["--allow", "User:ANONYMOUS", "--operation"];
    let write = [&user[..], &["write", "--transactional-id", "secret"]].concat();
    let (broker, _) = enforcing(&[&write]);
    for words in ends {
        let told = broker.refused(words);
        assert!(told.contains("--operation alter --cluster"), "{told}");
    }
    let alter = [&user[..], &["alter", "--cluster"]].concat();
    let (broker, _) = enforcing(&[&alter]);
    for (words, why) in ends
        .into_iter()
        .zip(["no transactional id", "nothing to end"])
    {
        let told = broker.refused(words);
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn to_reset_a_group_takes_the_right_to_read_its_stream_too_and_no_stream_is_named_that_may_not_be_seen()
 {
    let (mut broker, _) = enforcing(&[]);
    broker.stop();
    broker.set_flags(&[]);
    broker.restart();
    broker.feed(&["produce", "secret", "--quiet"], b"one\ntwo\n");
    broker.run(&["consume", "secret", "--group", "g", "--max", "2"]);
    let allow = |broker: &Broker, operation: &str, thing: &[&str]| {
        let rule = ["acl", "add", "--allow", "User:ANONYMOUS", "--operation"];
        broker.run(&[&rule[..], &[operation], thing].concat());
    };
    let enforce = |broker: &mut Broker, flags: &[&str]| {
        broker.stop();
        broker.set_flags(flags);
        broker.restart();
    };
    allow(&broker, "read", &["--group", "g"]);
    enforce(&mut broker, &ENFORCED);
    let reset = |broker: &Broker, stream: Option<&str>| {
        let request = v1::ResetGroupRequest {
            group: named("g"),
            to: Some(v1::StartAt {
                at: Some(v1::start_at::At::Earliest(true)),
            }),
            stream: stream.map(named),
            ..Default::default()
        };
        let mut raw = Raw::open(broker);
        call(&mut raw, CallMethod::ResetGroup, &request.encode_to_vec())
    };
    let hidden = reset(&broker, None).expect_err("the stream may not be read");
    assert_eq!(hidden.code, ErrorCode::NotAuthorized, "{hidden}");
    assert!(!hidden.message.contains("secret"), "{hidden}");
    let named = reset(&broker, Some("secret")).expect_err("nor if it is named");
    assert_eq!(named.code, ErrorCode::NotAuthorized, "{named}");
    let told = broker.refused(&["group", "reset", "g", "--to", "earliest"]);
    assert!(told.contains("may not read"), "{told}");

    // Who may see the stream is told which right is missing.
    enforce(&mut broker, &[]);
    allow(&broker, "describe", &["--stream", "secret"]);
    enforce(&mut broker, &ENFORCED);
    let seen = reset(&broker, None).expect_err("to see is not to read");
    let advice = "--operation read --stream secret";
    assert!(seen.message.contains(advice), "{seen}");

    enforce(&mut broker, &[]);
    let lag = |broker: &Broker| broker.json(&["group", "describe", "g"])["lag"].clone();
    assert_eq!(lag(&broker), 0, "nothing has come of what was refused");
    allow(&broker, "read", &["--stream", "secret"]);
    enforce(&mut broker, &ENFORCED);
    reset(&broker, None).expect("it is allowed now");
    assert_eq!(lag(&broker), 2);
}

#[test]
fn who_aborts_by_prefix_touches_and_sees_only_what_it_may_write_under() {
    let (mut broker, _) = enforcing(&[]);
    let enforce = |broker: &mut Broker, flags: &[&str]| {
        broker.stop();
        broker.set_flags(flags);
        broker.restart();
    };
    enforce(&mut broker, &[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for id in ["job/1", "job/2"] {
        runtime.block_on(async {
            let producer = kera_producer::Producer::builder()
                .bootstrap(broker.address())
                .stream("secret")
                .transactional_id(id)
                .transaction_timeout(Duration::from_secs(600));
            let producer = producer.build().await.expect("a producer");
            let transaction = producer.transaction().await.expect("it begins");
            let record = kera_producer::Record::of_value(b"x");
            transaction.append(&record).expect("it is taken");
            producer.flush().await.expect("it is stored");
        });
    }
    let user = ["acl", "add", "--allow", "User:ANONYMOUS", "--operation"];
    broker.run(&[&user[..], &["write", "--transactional-id", "job/2"]].concat());
    enforce(&mut broker, &ENFORCED);
    let body = v1::AbortTransactionsRequest {
        prefix: "job/".into(),
        ..Default::default()
    };
    let aborted = loop {
        let mut raw = Raw::open(&broker);
        match call(
            &mut raw,
            CallMethod::AbortTransactions,
            &body.encode_to_vec(),
        ) {
            Ok(answer) => break v1::AbortTransactionsResponse::decode(answer).expect("it fits"),
            // The coordinators read their state.
            Err(error) => assert_eq!(error.code, ErrorCode::CoordinatorLoading, "{error}"),
        }
    };
    let ids = aborted.transactions.iter().map(|one| {
        let handle = one.transaction.as_ref().expect("it has one");
        (handle.transactional_id.as_str(), one.error)
    });
    assert_eq!(ids.collect::<Vec<_>>(), [("job/2", 0)]);
    assert!(!aborted.more);
    enforce(&mut broker, &[]);
    let open = broker.json(&["transaction", "list"]);
    let open = open.as_array().expect("a list").iter();
    let open = open.filter(|one| one["state"] == "Ongoing");
    let open: Vec<_> = open.map(|one| one["transactional_id"].clone()).collect();
    assert_eq!(open, ["job/1"], "it is left alone");
    // An operator's command does the same.
    let told = broker.run(&["transaction", "abort", "--prefix", "job/", "--yes"]);
    assert!(told.contains("aborted: transaction of job/1"), "{told}");
    let told = broker.run(&["transaction", "abort", "--prefix", "job/", "--yes"]);
    assert!(told.contains("nothing to abort"), "{told}");
}

#[test]
fn preparing_a_transaction_needs_a_right_of_its_own() {
    let allow = |operation| {
        let user = ["--allow", "User:ANONYMOUS", "--operation", operation];
        [&user[..], &["--transactional-id", "secret"]].concat()
    };
    let (write, prepare) = (allow("write"), allow("two-phase-commit"));
    let request = v1::PrepareTransactionRequest {
        transaction: Some(v1::TransactionHandle {
            transactional_id: named("secret"),
            ..Default::default()
        }),
    };
    let cases: [(&[&[&str]], ErrorCode); 3] = [
        (&[&write], ErrorCode::NotAuthorized),
        (&[&prepare], ErrorCode::NotAuthorized),
        (&[&write, &prepare], ErrorCode::UnknownTransaction),
    ];
    for (rules, code) in cases {
        let (broker, _) = enforcing(rules);
        let mut raw = Raw::open(&broker);
        let body = request.encode_to_vec();
        let error = loop {
            let answer = call(&mut raw, CallMethod::PrepareTransaction, &body);
            let error = answer.expect_err("there is no such transaction");
            // The first to ask has the coordinator made.
            if error.code != ErrorCode::CoordinatorLoading {
                break error;
            }
        };
        assert_eq!(error.code, code, "{error}");
    }
    // A batch under a transactional id needs the right to write under it.
    let producer = [
        "--allow",
        "User:ANONYMOUS",
        "--producer",
        "--stream",
        "secret",
    ];
    let (broker, id) = enforcing(&[&producer]);
    let request = v1::AppendRequest {
        stream: id,
        transactional_id: named("secret"),
        ..Default::default()
    };
    let mut raw = Raw::open(&broker);
    raw.send(&frame_of(FrameKind::Append, 2, &request, &batch_of(b"v")));
    let answer = raw.append_answer().1;
    assert_eq!(answer.error, ErrorCode::NotAuthorized as u32, "{answer:?}");
}

#[test]
fn what_changes_users_rules_and_quotas_says_as_json_what_it_has_done() {
    let broker = Broker::start();
    let json = |words: &[&str], input: &[u8]| -> serde_json::Value {
        let text = broker.feed(&[words, &["--json"]].concat(), input);
        serde_json::from_str(&text).expect("one value in JSON, and nothing else")
    };
    let create = ["user", "create", "ann", "--iterations", "4096"];
    let credential = |mechanism: &str| json!({"mechanism": mechanism, "iterations": 4096});
    let credentials = [credential("SCRAM-SHA-256"), credential("SCRAM-SHA-512")];
    let ann = json!({"name": "ann", "credentials": credentials});
    assert_eq!(json(&create, b"secret"), json!({"created": ann}));
    assert_eq!(json(&["user", "list"], b""), json!([ann]));

    let add = ["acl", "add", "--allow", "User:ann", "--stream", "orders"];
    let rule = |operation: &str| {
        json!({
            "permission": "allow", "principal": "User:ann", "operation": operation,
            "kind": "stream", "name": "orders", "pattern": "literal", "host": "*",
        })
    };
    let read = [&add[..], &["--operation", "read"]].concat();
    let told = json!({"added": 1, "already_there": 0, "enforced": false, "rules": [rule("read")]});
    assert_eq!(json(&read, b""), told);
    let both = [&add[..], &["--operation", "read,write"]].concat();
    let rules = [rule("read"), rule("write")];
    let told = json!({"added": 1, "already_there": 1, "enforced": false, "rules": rules});
    assert_eq!(json(&both, b""), told);

    let of_ann = ["--principal", "User:ann", "--client-id", "batch"];
    let limits = ["--producer-byte-rate", "1KiB", "--request-percentage", "50"];
    let set = [&["quota", "set"][..], &of_ann, &limits].concat();
    let quota = |limits: serde_json::Value| json!({"principal": "User:ann", "client_id": "batch", "address": null, "limits": limits});
    let all = quota(json!({"producer_byte_rate": 1024.0, "request_percentage": 50.0}));
    assert_eq!(json(&set, b""), json!({"set": all}));
    assert_eq!(json(&["quota", "list"], b""), json!([all]));
    let delete = [&["quota", "delete", "--yes"][..], &of_ann].concat();
    let one = [&delete[..], &["--limit", "request_percentage"]].concat();
    let removed = quota(json!({"request_percentage": 50.0}));
    assert_eq!(json(&one, b""), json!({"deleted": removed}));
    let rest = quota(json!({"producer_byte_rate": 1024.0}));
    assert_eq!(json(&delete, b""), json!({"deleted": rest}));
    assert_eq!(json(&["quota", "list"], b""), json!([]));

    let delete = ["user", "delete", "ann", "--yes"];
    let left = json!({"deleted": "ann", "roles": [], "rules": 2});
    assert_eq!(json(&delete, b""), left, "what names her still");
    assert_eq!(json(&["user", "list"], b""), json!([]));
}
