//! What each control call needs, and the one place that looks whether the caller has it.
//!
//! [`Guarded`] stands before each service, for calls over gRPC and as frames alike. A call without an entry in
//! [`needs`](Needs::needs) does not compile.

use std::future::Future;
use std::sync::Arc;

use kera_grpc::serve::Caller;
use kera_grpc::v1::{
    access_server, clusters_server, consumers_server, lanes_server, quotas_server, streams_server,
    transaction_tools_server, transactions_server, users_server,
};
use kera_grpc::{status_of, wire_error_of_status};
use kera_metadata::access::{CLUSTER_NAME, Kind, Operation};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use tonic::{Request, Response, Status};

use super::{Access, Who};
use crate::audit::{
    Attempt, Change, mechanisms_text, pin_text, recovery_text, reset_text, settings_text, trim_text,
};
use crate::config::{Listener, Via};
use crate::data::catalog::Catalog;
use crate::principal::Principal;
use crate::shared::Shared;

/// What a call needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need<'a> {
    /// To do this to a stream.
    Stream(Operation, &'a str),
    /// To do this to the stream of this id. Other brokers need no more than to be brokers.
    StreamOfId(Operation, &'a [u8]),
    /// To do this to a group.
    Group(Operation, &'a str),
    /// To do this under a transactional id.
    TransactionalId(Operation, &'a str),
    /// To do this to the cluster.
    Cluster(Operation),
    /// To make a stream of this name, or any.
    Create(&'a str),
    /// To write to this stream, or to any if it has no name, or to write with sequence numbers.
    Produce(&'a str),
}

/// A call's request, which says what the call needs: all of these. What lists things needs nothing, and leaves out
/// what the caller may not see.
pub(crate) trait Needs {
    /// What the call needs.
    fn needs(&self) -> Vec<Need<'_>>;

    /// What the call changes, if that is for the audit log: what operators do, not what producers and consumers do all
    /// the time.
    fn change(&self) -> Option<Change> {
        None
    }
}

impl Access {
    /// Whether the caller may make this call.
    ///
    /// # Errors
    /// [`ErrorCode::NotAuthorized`], with the command that would allow it. As [`Access::check_age`].
    pub(crate) fn check(
        &self,
        via: Listener,
        caller: Option<&Caller>,
        request: &impl Needs,
        catalog: &Catalog,
    ) -> Result<(), WireError> {
        if !self.is_enforced() {
            return Ok(());
        }
        let Some(caller) = caller else {
            // A defect: every way to a call says who calls.
            let text = "the broker does not know who called; see its log";
            return Err(WireError::new(ErrorCode::Internal, text));
        };
        let principal = Principal::of(caller.user.as_ref());
        let who = Who {
            principal: &principal,
            host: caller.address,
            via: via_of(via, caller),
        };
        // Before the first need: some are told whether they may without a refusal.
        self.check_age(who)?;
        let cluster = (Kind::Cluster, CLUSTER_NAME);
        for need in request.needs() {
            match need {
                Need::Stream(operation, name) => {
                    self.require(who, operation, (Kind::Stream, name))?
                }
                Need::StreamOfId(operation, id) => {
                    if !self.allows(who, ClusterAction, cluster) {
                        let name = catalog.of_id(id)?.name();
                        self.require_of_id(who, operation, id, &name)?;
                    }
                }
                Need::Group(operation, name) => {
                    self.require(who, operation, (Kind::Group, name))?
                }
                Need::TransactionalId(operation, id) => {
                    self.require(who, operation, (Kind::TransactionalId, id))?
                }
                Need::Cluster(operation) => self.require(who, operation, cluster)?,
                Need::Create(name) => {
                    if !self.allows(who, Operation::Create, cluster) {
                        self.require(who, Operation::Create, (Kind::Stream, name))?;
                    }
                }
                Need::Produce("") => {
                    if !self.permits_any(who, Operation::Write, Kind::Stream) {
                        self.require(who, Operation::IdempotentWrite, cluster)?;
                    }
                }
                Need::Produce(name) => {
                    if !self.allows(who, Operation::IdempotentWrite, cluster) {
                        self.require(who, Operation::Write, (Kind::Stream, name))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether the caller may see a stream or group in a list.
pub(crate) fn may_see(shared: &Shared, caller: Option<&Caller>, thing: (Kind, &str)) -> bool {
    may_do(shared, caller, Operation::Describe, thing)
}

/// Whether the caller may do this to something that a call has found.
pub(crate) fn may_do(
    shared: &Shared,
    caller: Option<&Caller>,
    operation: Operation,
    thing: (Kind, &str),
) -> bool {
    let user = caller.and_then(|caller| caller.user.as_ref());
    let principal = Principal::of(user);
    let Some(caller) = caller else {
        return !shared.access.is_enforced();
    };
    let who = Who {
        principal: &principal,
        host: caller.address,
        via: via_of(Listener::Native, caller),
    };
    shared.access.allows(who, operation, thing)
}

/// A service whose calls are made only by those who may.
pub(crate) struct Guarded<S> {
    service: S,
    shared: Arc<Shared>,
}

impl<S> Guarded<S> {
    /// Stands before `service`.
    pub(crate) fn new(service: S, shared: &Arc<Shared>) -> Self {
        let shared = shared.clone();
        Self { service, shared }
    }

    /// Whether who asks may.
    ///
    /// # Errors
    /// The refusal, which the audit log has then.
    pub(crate) fn check<R: Needs>(&self, request: &Request<R>) -> Result<(), Status> {
        let caller = request.extensions().get::<Caller>();
        let (access, catalog) = (&self.shared.access, &self.shared.data.catalog);
        let checked = access.check(via(request), caller, request.get_ref(), catalog);
        checked.map_err(|error| status_of(&error))
    }

    fn attempt<R: Needs>(&self, request: &Request<R>) -> Option<Attempt> {
        let change = request.get_ref().change()?;
        attempt_via(
            &self.shared,
            via(request),
            request.extensions().get(),
            change,
        )
    }

    /// Has `call` do what the service would do, for callers who may, and writes down how it ended.
    pub(crate) async fn instead<R: Needs, T, F>(
        &self,
        request: Request<R>,
        call: impl FnOnce(R) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, WireError>>,
    {
        self.check(&request)?;
        let attempt = self.attempt(&request);
        let outcome = call(request.into_inner()).await;
        let outcome = outcome.map_err(|error| status_of(&error));
        end(attempt, &outcome);
        outcome
    }
}

/// The listener that the call came in by. A request that was made of another one's call has that listener in its extensions, which
/// no client can write.
pub(crate) fn via<R>(request: &Request<R>) -> Listener {
    let told = request.extensions().get::<Listener>();
    told.copied().unwrap_or(Listener::Native)
}

/// The same with the name of the address, which only the native listener's have here.
pub(super) fn via_of(listener: Listener, caller: &Caller) -> Via {
    Via::new(listener, caller.listener)
}

/// A change that a caller makes from now on; `None` if nobody knows who calls, which is a defect.
pub(crate) fn attempt(shared: &Shared, caller: Option<&Caller>, change: Change) -> Option<Attempt> {
    attempt_via(shared, Listener::Native, caller, change)
}

fn attempt_via(
    shared: &Shared,
    via: Listener,
    caller: Option<&Caller>,
    change: Change,
) -> Option<Attempt> {
    let caller = caller?;
    let principal = Principal::of(caller.user.as_ref());
    let who = Who {
        principal: &principal,
        host: caller.address,
        via: via_of(via, caller),
    };
    Some(shared.audit.attempt(who, change))
}

/// Writes down how a call ended.
fn end<R>(attempt: Option<Attempt>, outcome: &Result<R, Status>) {
    let Some(attempt) = attempt else { return };
    match outcome {
        Ok(_) => attempt.made(),
        Err(status) => match wire_error_of_status(status) {
            Some(error) => attempt.end(Err::<&(), _>(&error)),
            None => attempt.may_be_made(status.message()),
        },
    }
}

/// What each call of a service needs, and the service guarded so.
macro_rules! guarded {
    ($service:path: $($call:ident($request:ident) -> $response:ident needs |$of:ident| $needs:expr $(, changes $change:expr)?;)*) => {
        $(impl Needs for v1::$request {
            fn needs(&self) -> Vec<Need<'_>> {
                let $of = self;
                let _ = $of;
                $needs
            }

            $(fn change(&self) -> Option<Change> {
                let $of = self;
                Option::from($change)
            })?
        })*

        #[tonic::async_trait]
        impl<S: $service> $service for Guarded<S> {
            $(async fn $call(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                self.check(&request)?;
                let attempt = self.attempt(&request);
                let outcome = self.service.$call(request).await;
                end(attempt, &outcome);
                outcome
            })*
        }
    };
}

use Operation::{
    Alter, AlterConfigs, ClusterAction, Delete, Describe, DescribeConfigs, Read, TwoPhaseCommit,
    Write,
};

guarded! { streams_server::Streams:
    create_stream(CreateStreamRequest) -> StreamInfo needs |r| vec![Need::Create(&r.name)],
        changes Change::new("create_stream", "stream", &r.name, settings_text(&r.config.unwrap_or_default()));
    list_streams(ListStreamsRequest) -> ListStreamsResponse needs |_r| Vec::new();
    get_stream(GetStreamRequest) -> StreamInfo needs |r| vec![Need::Stream(Describe, &r.name)];
    describe_stream(DescribeStreamRequest) -> DescribeStreamResponse
        needs |r| vec![Need::Stream(Describe, &r.name), Need::Stream(DescribeConfigs, &r.name)];
    alter_stream(AlterStreamRequest) -> StreamInfo needs |r| alters(r),
        changes Change::new("alter_stream", "stream", &r.name, settings_text(&r.config.unwrap_or_default()));
    recover_stream(RecoverStreamRequest) -> RecoverStreamResponse needs |r| vec![Need::Cluster(Alter)],
        changes accepts_loss(r);
    delete_stream(DeleteStreamRequest) -> DeleteStreamResponse needs |r| vec![Need::Stream(Delete, &r.name)],
        changes Change::new("delete_stream", "stream", &r.name, "");
    trim_stream(TrimStreamRequest) -> TrimStreamResponse needs |r| vec![Need::Stream(Delete, &r.name)],
        changes Change::new("trim_stream", "stream", &r.name, trim_text(r));
    compact_stream(CompactStreamRequest) -> CompactStreamResponse needs |r| vec![Need::Stream(Alter, &r.name)],
        changes Change::new("compact_stream", "stream", &r.name, "");
    create_pin(CreatePinRequest) -> CreatePinResponse needs |r| pins(r),
        changes Change::new("create_pin", "stream", &r.stream, pin_text(r));
    // Without a stream the service leaves out what may not be seen.
    list_pins(ListPinsRequest) -> ListPinsResponse needs |r| match r.stream.as_str() {
        "" => Vec::new(),
        stream => vec![Need::Stream(Describe, stream)],
    };
    // The service asks for more where retention waits for the pin.
    delete_pin(DeletePinRequest) -> DeletePinResponse needs |r| vec![Need::Stream(Read, &r.stream)],
        changes Change::new("delete_pin", "stream", &r.stream, format!("pin={}", r.name));
    find_ordinals(FindOrdinalsRequest) -> FindOrdinalsResponse needs |r| vec![Need::Stream(Describe, &r.name)];
    find_copies(FindCopiesRequest) -> FindCopiesResponse needs |r| vec![Need::Stream(Describe, &r.name)];
    init_producer(InitProducerRequest) -> InitProducerResponse needs |r| vec![Need::Produce(&r.name)];
    describe_broker(DescribeBrokerRequest) -> DescribeBrokerResponse needs |_r| vec![Need::Cluster(Describe)];
}

/// To read, as for commits of positions. Retention that waits keeps more than the stream's settings say, which is for those
/// who may change them; the service asks for as much where there is such a pin already.
fn pins(request: &v1::CreatePinRequest) -> Vec<Need<'_>> {
    let stream = &request.stream;
    let waits = request.policy == i32::from(v1::PinPolicy::Wait);
    let waits = waits.then_some(Need::Stream(AlterConfigs, stream));
    std::iter::once(Need::Stream(Read, stream))
        .chain(waits)
        .collect()
}

/// To accept a loss changes a stream. To ask what would be lost does not.
fn accepts_loss(request: &v1::RecoverStreamRequest) -> Option<Change> {
    let text = recovery_text(request);
    let change = Change::new("recover_stream", "stream", &request.name, text);
    (request.accept_loss || !request.give_up.is_empty()).then_some(change)
}

fn end_text(commit: bool) -> &'static str {
    match commit {
        true => "commit",
        false => "abort",
    }
}

fn lost_text(request: &v1::EndLostRequest) -> String {
    let place = match (request.stream.as_str(), request.partition) {
        ("", _) => String::new(),
        (stream, None) => format!(" stream={stream}"),
        (stream, Some(partition)) => format!(" stream={stream} partition={partition}"),
    };
    format!("{}{place}", end_text(request.commit))
}

/// A stream with more lanes is another stream than one with other settings, as at Kafka.
fn alters(request: &v1::AlterStreamRequest) -> Vec<Need<'_>> {
    let name = &request.name;
    let mut settings = request.config.unwrap_or_default();
    let grows = settings.lanes.take().is_some() | settings.partitions.take().is_some();
    let mut needs = Vec::new();
    if grows {
        needs.push(Need::Stream(Alter, name));
    }
    if !grows || settings != v1::StreamConfig::default() {
        needs.push(Need::Stream(AlterConfigs, name));
    }
    needs
}

guarded! { consumers_server::Consumers:
    join(JoinRequest) -> JoinResponse needs |r| vec![Need::Group(Read, &r.group), Need::Stream(Read, &r.stream)];
    heartbeat(HeartbeatRequest) -> HeartbeatResponse needs |r| vec![Need::Group(Read, &r.group)];
    acquire(AcquireRequest) -> AcquireResponse needs |r| vec![Need::Group(Read, &r.group)];
    commit(CommitRequest) -> CommitResponse needs |r| vec![Need::Group(Read, &r.group)];
    leave(LeaveRequest) -> LeaveResponse needs |r| vec![Need::Group(Read, &r.group)];
    commit_positions(CommitPositionsRequest) -> CommitPositionsResponse
        needs |r| vec![Need::Group(Read, &r.group), Need::Stream(Read, &r.stream)];
    send_positions(SendPositionsRequest) -> SendPositionsResponse needs |r| {
        let id = id_of(r.transaction.as_ref());
        vec![Need::TransactionalId(Write, id), Need::Group(Read, &r.group)]
    };
    list_groups(ListGroupsRequest) -> ListGroupsResponse needs |_r| Vec::new();
    describe_group(DescribeGroupRequest) -> DescribeGroupResponse needs |r| vec![Need::Group(Describe, &r.group)];
    // Without a stream the service asks for all that the group reads: `may_read_all`.
    reset_group(ResetGroupRequest) -> ResetGroupResponse needs |r| resets(r),
        changes Change::new("reset_group", "group", &r.group, reset_text(r));
    delete_group(DeleteGroupRequest) -> DeleteGroupResponse needs |r| vec![Need::Group(Delete, &r.group)],
        changes Change::new("delete_group", "group", &r.group, "");
    find_coordinator(FindCoordinatorRequest) -> FindCoordinatorResponse needs |r| match r.transactional_id.as_str() {
        "" => vec![Need::Group(Describe, &r.group)],
        id => vec![Need::TransactionalId(Describe, id)],
    };
}

/// To read for the group, and the stream of which it is to be.
fn resets(request: &v1::ResetGroupRequest) -> Vec<Need<'_>> {
    let stream = request.stream.as_deref();
    let stream = stream.map(|stream| Need::Stream(Read, stream));
    let group = Need::Group(Read, &request.group);
    std::iter::once(group).chain(stream).collect()
}

/// The transactional id of a handle.
fn id_of(handle: Option<&v1::TransactionHandle>) -> &str {
    handle.map_or("", |handle| &handle.transactional_id)
}

/// To write under the transactional id and to all streams, and to read for all groups.
fn adds(request: &v1::AddToTransactionRequest) -> Vec<Need<'_>> {
    let mut needs = vec![Need::TransactionalId(Write, &request.transactional_id)];
    let streams = request.streams.iter();
    needs.extend(streams.map(|added| Need::StreamOfId(Write, &added.stream)));
    needs.extend(request.groups.iter().map(|group| Need::Group(Read, group)));
    needs
}

/// To write under the transactional id, beyond the time of a transaction.
fn without_end(id: &str) -> Vec<Need<'_>> {
    [Write, TwoPhaseCommit]
        .map(|operation| Need::TransactionalId(operation, id))
        .into()
}

/// To write under the transactional id; and where heartbeats keep a transaction open beyond its time, what any transaction without
/// a timeout needs.
fn inits(request: &v1::InitTransactionsRequest) -> Vec<Need<'_>> {
    let id = &request.transactional_id;
    match request.sends_heartbeats {
        true => without_end(id),
        false => vec![Need::TransactionalId(Write, id)],
    }
}

guarded! { transactions_server::Transactions:
    init_transactions(InitTransactionsRequest) -> InitTransactionsResponse needs |r| inits(r);
    add_to_transaction(AddToTransactionRequest) -> AddToTransactionResponse needs |r| adds(r);
    prepare_transaction(PrepareTransactionRequest) -> PrepareTransactionResponse needs |r| {
        without_end(id_of(r.transaction.as_ref()))
    };
    end_transaction(EndTransactionRequest) -> EndTransactionResponse
        needs |r| vec![Need::TransactionalId(Write, id_of(r.transaction.as_ref()))];
    forget_transaction(ForgetTransactionRequest) -> ForgetTransactionResponse
        needs |r| vec![Need::TransactionalId(Write, id_of(r.transaction.as_ref()))];
    list_open_transactions(ListOpenTransactionsRequest) -> ListOpenTransactionsResponse needs |_r| Vec::new();
    heartbeat_transaction(HeartbeatTransactionRequest) -> HeartbeatTransactionResponse
        needs |r| without_end(&r.transactional_id);
    // The service writes down each transaction that it has aborted.
    abort_transactions(AbortTransactionsRequest) -> AbortTransactionsResponse needs |r| match r.transactions.is_empty() {
        // Those that the caller may not abort are left out.
        true => Vec::new(),
        false => vec![Need::Cluster(ClusterAction)],
    };
}

// Stream engines, and brokers among themselves.
guarded! { lanes_server::Lanes:
    get_generations(GetGenerationsRequest) -> GetGenerationsResponse needs |r| vec![Need::Stream(Describe, &r.name)];
    watch_lanes(WatchLanesRequest) -> WatchLanesResponse needs |r| vec![Need::StreamOfId(Describe, &r.stream)];
    cut_lane(CutLaneRequest) -> CutLaneResponse needs |r| vec![Need::StreamOfId(Describe, &r.stream)];
    cut_for_growth(CutForGrowthRequest) -> CutForGrowthResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    give_up_growth(GiveUpGrowthRequest) -> GiveUpGrowthResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    observe(ObserveRequest) -> ObserveResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    peek_lane(PeekLaneRequest) -> PeekLaneResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    grant_transaction(GrantTransactionRequest) -> GrantTransactionResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    verify_transaction(VerifyTransactionRequest) -> VerifyTransactionResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    add_transaction_parts(AddTransactionPartsRequest) -> AddTransactionPartsResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    end_transactions(EndTransactionsRequest) -> EndTransactionsResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    settle_transactions(SettleTransactionsRequest) -> SettleTransactionsResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    list_unended(ListUnendedRequest) -> ListUnendedResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    find_transactions(FindTransactionsRequest) -> FindTransactionsResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    open_share(OpenShareRequest) -> OpenShareResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    write_share(WriteShareRequest) -> WriteShareResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    group_settings(GroupSettingsRequest) -> GroupSettingsResponse needs |_r| vec![Need::Cluster(ClusterAction)];
    append_dead_letters(AppendDeadLettersRequest) -> AppendDeadLettersResponse needs |_r| vec![Need::Cluster(ClusterAction)];
}

guarded! { clusters_server::Clusters:
    describe_cluster(DescribeClusterRequest) -> DescribeClusterResponse needs |_r| vec![Need::Cluster(Describe)];
    plan_moves(PlanMovesRequest) -> PlanMovesResponse needs |_r| vec![Need::Cluster(Describe)];
    move_streamlet(MoveStreamletRequest) -> MoveStreamletResponse needs |r| vec![Need::Cluster(Alter)],
        changes Change::new("move_streamlet", "stream", &r.stream, format!("streamlet={} to={}", r.streamlet, r.to));
    set_draining(SetDrainingRequest) -> SetDrainingResponse needs |r| vec![Need::Cluster(Alter)],
        changes Change::new("set_draining", "broker", r.broker.to_string(), format!("draining={}", r.draining));
    describe_drain(DescribeDrainRequest) -> DescribeDrainResponse needs |_r| vec![Need::Cluster(Describe)];
    plan_restart(PlanRestartRequest) -> PlanRestartResponse needs |_r| vec![Need::Cluster(Describe)];
    finalize_cluster(FinalizeClusterRequest) -> FinalizeClusterResponse needs |_r| vec![Need::Cluster(Alter)],
        changes Change::new("finalize_cluster", "cluster", CLUSTER_NAME, "");
}

guarded! { users_server::Users:
    list_users(ListUsersRequest) -> ListUsersResponse needs |_r| vec![Need::Cluster(Describe)];
    put_user(PutUserRequest) -> PutUserResponse needs |r| vec![Need::Cluster(Alter)],
        changes Change::new("put_user", "user", &r.name, mechanisms_text(r));
    delete_user(DeleteUserRequest) -> DeleteUserResponse needs |r| vec![Need::Cluster(Alter)],
        changes Change::new("delete_user", "user", &r.name, "");
}

guarded! { quotas_server::Quotas:
    list_quotas(ListQuotasRequest) -> ListQuotasResponse needs |_r| vec![Need::Cluster(DescribeConfigs)];
    alter_quota(AlterQuotaRequest) -> AlterQuotaResponse needs |_r| vec![Need::Cluster(AlterConfigs)];
}

guarded! { transaction_tools_server::TransactionTools:
    list_transactions(ListTransactionsRequest) -> ListTransactionsResponse needs |_r| Vec::new();
    describe_transaction(DescribeTransactionRequest) -> DescribeTransactionResponse
        needs |r| vec![Need::TransactionalId(Describe, &r.transactional_id)];
    abort_transaction(AbortTransactionRequest) -> AbortTransactionResponse needs |r| vec![Need::Cluster(Alter)],
        changes Change::new("abort_transaction", "transactional-id", &r.transactional_id, "");
    end_prepared(EndPreparedRequest) -> EndPreparedResponse needs |r| vec![Need::Cluster(Alter)],
        changes Change::new("end_transaction", "transactional-id", &r.transactional_id, end_text(r.commit));
    end_lost(EndLostRequest) -> EndLostResponse needs |r| vec![Need::Cluster(Alter)],
        changes Change::new("end_transaction", "producer", r.producer.to_string(), lost_text(r));
}

guarded! { access_server::Access:
    list_rules(ListRulesRequest) -> ListRulesResponse needs |_r| vec![Need::Cluster(Describe)];
    add_rules(AddRulesRequest) -> AddRulesResponse needs |_r| vec![Need::Cluster(Alter)];
    remove_rules(RemoveRulesRequest) -> RemoveRulesResponse needs |_r| vec![Need::Cluster(Alter)];
    list_roles(ListRolesRequest) -> ListRolesResponse needs |_r| vec![Need::Cluster(Describe)];
    // The service writes down each part of a long list of members.
    alter_role(AlterRoleRequest) -> AlterRoleResponse needs |r| vec![Need::Cluster(Alter)];
    delete_role(DeleteRoleRequest) -> DeleteRoleResponse needs |r| vec![Need::Cluster(Alter)],
        changes Change::new("delete_role", "role", &r.name, format!("with_rules={}", r.with_rules));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_heartbeat_needs_what_keeps_a_transaction_open_beyond_its_time() {
        let id = "job/1".to_owned();
        let beyond = [Write, TwoPhaseCommit].map(|one| Need::TransactionalId(one, "job/1"));
        let heartbeat = v1::HeartbeatTransactionRequest {
            transactional_id: id.clone(),
            ..Default::default()
        };
        assert_eq!(heartbeat.needs(), beyond);
        for sends_heartbeats in [false, true] {
            let init = v1::InitTransactionsRequest {
                transactional_id: id.clone(),
                sends_heartbeats,
                ..Default::default()
            };
            let needed = 1 + usize::from(sends_heartbeats);
            assert_eq!(init.needs(), beyond[..needed]);
        }
    }
}
