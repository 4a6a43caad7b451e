//! What owners ask the coordinators of share groups, here or at another broker.

use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::classic::shares::{
    ShareConfig, ShareConfigure, ShareOpen, ShareOpened, ShareWrite,
};
use kera_coordinator::classic::{Fault, Reply, Request};
use kera_coordinator::share::ShareState;
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::StreamId;
use kera_protocol::v1::{self, ShareRefusal};

use super::table::{ShareError, ShareKey};
use crate::coordination::CoordinatorKind;
use crate::others;
use crate::shared::Shared;

/// How long another broker is given.
const ASK_WITHIN: Duration = Duration::from_secs(5);

/// The broker that coordinates a group, if it is another one.
async fn elsewhere(shared: &Arc<Shared>, group: &str) -> Result<Option<u32>, WireError> {
    let kind = CoordinatorKind::Groups;
    let place = shared.coordination.place(shared, kind, group).await?;
    Ok((place.broker != shared.data.directory.me()).then_some(place.broker))
}

async fn ask_here(
    shared: &Arc<Shared>,
    request: Request,
) -> Result<Result<Reply, Fault>, WireError> {
    let group = request.group().to_owned();
    let request = AnyRequest::Classic(request);
    match shared.coordination.call(shared, &group, request).await? {
        AnyReply::Classic(Reply::Refused(fault)) => Ok(Err(fault)),
        AnyReply::Classic(reply) => Ok(Ok(reply)),
        other => Err(mismatch(&other)),
    }
}

fn mismatch(reply: &impl std::fmt::Debug) -> WireError {
    tracing::error!(?reply, "a coordinator answered another question");
    let text = "the coordinator answered another question; see the broker's log";
    WireError::new(ErrorCode::Internal, text)
}

fn refusal_of(fault: &Fault) -> Result<ShareRefusal, WireError> {
    match fault {
        Fault::FencedShare => Ok(ShareRefusal::Fenced),
        Fault::GroupNotFound | Fault::NotShare | Fault::OtherKind => Ok(ShareRefusal::NoGroup),
        Fault::UnknownPartition => Ok(ShareRefusal::NoPartition),
        Fault::TooManyOffsets => Ok(ShareRefusal::Full),
        other => Err(WireError::new(
            ErrorCode::InvalidArgument,
            other.to_string(),
        )),
    }
}

fn check(refusal: i32) -> Result<(), ShareError> {
    match ShareRefusal::try_from(refusal) {
        Ok(ShareRefusal::None) => Ok(()),
        Ok(ShareRefusal::NoGroup) => Err(ShareError::NoGroup),
        Ok(ShareRefusal::NoPartition) => Err(ShareError::NoPartition),
        Ok(ShareRefusal::Full) => Err(ShareError::Full),
        // One that this version does not know says no as well.
        Ok(ShareRefusal::Fenced) | Err(_) => Err(ShareError::Fenced),
    }
}

/// Begins to serve a group in a partition.
pub(super) async fn open(
    shared: &Arc<Shared>,
    key: &ShareKey,
    owner_epoch: u32,
) -> Result<ShareOpened, ShareError> {
    let request = v1::OpenShareRequest {
        group: key.group.to_string(),
        stream: key.stream.as_bytes().to_vec().into(),
        partition: key.partition,
        owner_epoch,
    };
    let asked = async {
        match elsewhere(shared, &key.group).await? {
            None => open_here(shared, request).await,
            Some(broker) => {
                let mut stub = others::lanes(shared, broker)?;
                others::answer(broker, ASK_WITHIN, stub.open_share(request)).await
            }
        }
    };
    let answer = asked.await.map_err(ShareError::Coordinator)?;
    check(answer.refusal)?;
    Ok(ShareOpened {
        state_epoch: answer.state_epoch,
        state: answer
            .start
            .map(|start| ShareState::of(start, &answer.runs)),
        config: config_of(answer.settings),
    })
}

/// Answers an owner.
///
/// # Errors
/// This broker does not coordinate the group, or cannot say yet.
pub(crate) async fn open_here(
    shared: &Arc<Shared>,
    request: v1::OpenShareRequest,
) -> Result<v1::OpenShareResponse, WireError> {
    let open = ShareOpen {
        group: request.group,
        stream: stream_of(&request.stream)?,
        partition: request.partition,
        owner_epoch: request.owner_epoch,
    };
    match ask_here(shared, Request::ShareOpen(open)).await? {
        Ok(Reply::ShareOpened(opened)) => Ok(v1::OpenShareResponse {
            refusal: ShareRefusal::None as i32,
            state_epoch: opened.state_epoch,
            start: opened.state.as_ref().map(|state| state.start),
            runs: opened
                .state
                .as_ref()
                .map(ShareState::runs)
                .unwrap_or_default(),
            settings: pairs(&opened.config),
        }),
        Ok(other) => Err(mismatch(&other)),
        Err(fault) => Ok(v1::OpenShareResponse {
            refusal: refusal_of(&fault)? as i32,
            ..v1::OpenShareResponse::default()
        }),
    }
}

/// Has it kept where a group stands.
pub(super) async fn write(
    shared: &Arc<Shared>,
    key: &ShareKey,
    state_epoch: u64,
    state: &ShareState,
) -> Result<(), ShareError> {
    let request = v1::WriteShareRequest {
        group: key.group.to_string(),
        stream: key.stream.as_bytes().to_vec().into(),
        partition: key.partition,
        state_epoch,
        start: state.start,
        runs: state.runs(),
    };
    let asked = async {
        match elsewhere(shared, &key.group).await? {
            None => write_here(shared, request).await,
            Some(broker) => {
                let mut stub = others::lanes(shared, broker)?;
                others::answer(broker, ASK_WITHIN, stub.write_share(request)).await
            }
        }
    };
    let answer = asked.await.map_err(ShareError::Coordinator)?;
    check(answer.refusal)
}

/// Answers an owner, once it is durable.
///
/// # Errors
/// This broker does not coordinate the group, or cannot say yet.
pub(crate) async fn write_here(
    shared: &Arc<Shared>,
    request: v1::WriteShareRequest,
) -> Result<v1::WriteShareResponse, WireError> {
    let write = ShareWrite {
        group: request.group,
        stream: stream_of(&request.stream)?,
        partition: request.partition,
        state_epoch: request.state_epoch,
        state: ShareState::of(request.start, &request.runs),
    };
    let refusal = match ask_here(shared, Request::ShareWrite(write)).await? {
        Ok(Reply::ShareWritten) => ShareRefusal::None,
        Ok(other) => return Err(mismatch(&other)),
        Err(fault) => refusal_of(&fault)?,
    };
    Ok(v1::WriteShareResponse {
        refusal: refusal as i32,
    })
}

/// What is to be set for a group: nothing to read what is set.
pub type GroupSettings = ShareConfigure;

/// What is set for a group, with what is to be set. `Err` within says what is wrong with that.
///
/// # Errors
/// The coordinator is not reached, or cannot say yet.
pub async fn settings(
    shared: &Arc<Shared>,
    wanted: GroupSettings,
) -> Result<Result<ShareConfig, String>, WireError> {
    let request = v1::GroupSettingsRequest {
        group: wanted.group,
        changes: wanted
            .changes
            .into_iter()
            .map(|(name, value)| v1::GroupSetting { name, value })
            .collect(),
        whole: wanted.whole,
        validate_only: wanted.validate_only,
        client_host: wanted.client_host,
    };
    let answer = match elsewhere(shared, &request.group).await? {
        None => settings_here(shared, request).await?,
        Some(broker) => {
            let mut stub = others::lanes(shared, broker)?;
            others::answer(broker, ASK_WITHIN, stub.group_settings(request)).await?
        }
    };
    Ok(match answer.refusal.is_empty() {
        true => Ok(config_of(answer.settings)),
        false => Err(answer.refusal),
    })
}

/// Answers another broker.
///
/// # Errors
/// This broker does not coordinate the group, or cannot say yet.
pub(crate) async fn settings_here(
    shared: &Arc<Shared>,
    request: v1::GroupSettingsRequest,
) -> Result<v1::GroupSettingsResponse, WireError> {
    let changes = request.changes.into_iter();
    let configure = ShareConfigure {
        group: request.group,
        changes: changes.map(|change| (change.name, change.value)).collect(),
        whole: request.whole,
        validate_only: request.validate_only,
        client_host: request.client_host,
    };
    match ask_here(shared, Request::ShareConfigure(configure)).await? {
        Ok(Reply::ShareConfigured(config)) => Ok(v1::GroupSettingsResponse {
            refusal: String::new(),
            settings: pairs(&config),
        }),
        Ok(other) => Err(mismatch(&other)),
        Err(fault) => Ok(v1::GroupSettingsResponse {
            refusal: fault.to_string(),
            settings: Vec::new(),
        }),
    }
}

fn pairs(config: &ShareConfig) -> Vec<v1::GroupSetting> {
    let pairs = config.pairs().map(|(name, value)| v1::GroupSetting {
        name: name.to_owned(),
        value: Some(value.to_owned()),
    });
    pairs.collect()
}

fn config_of(settings: Vec<v1::GroupSetting>) -> ShareConfig {
    let settings = settings.into_iter();
    ShareConfig::from_pairs(settings.filter_map(|one| Some((one.name, one.value?))))
}

pub(super) fn stream_of(bytes: &[u8]) -> Result<StreamId, WireError> {
    StreamId::from_slice(bytes).ok_or_else(|| {
        let text = "the id of a stream has 16 bytes, and this one has not";
        WireError::new(ErrorCode::InvalidArgument, text)
    })
}
