//! Joining, heartbeats, leaving, and sessions that expire.

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1::{
    HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse,
    Order, StartAt, start_at,
};

use crate::admin::chosen_ordinals;
use crate::coordinator::{Coordinator, NoRoom, Reply, Session, Step, other_kind};
use crate::event::{Body, GroupCreated, KIND_NATIVE, LeasesEnded, MemberJoined, MemberLeft};
use crate::shares;
use crate::view::{LaneView, StreamShape};

const MAX_NAME_BYTES: usize = 249;

impl Coordinator {
    pub(crate) fn join(
        &mut self,
        now_ms: u64,
        request: JoinRequest,
        host: &str,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<JoinResponse, WireError> {
        check_group_name(&request.group)?;
        let name = request.group.as_str();
        if request.client.len() > self.limits.client_name_bytes
            || request.client.chars().any(char::is_control)
        {
            return Err(invalid(format!(
                "client name of a member of group {name:?} must be at most {} bytes without control characters",
                self.limits.client_name_bytes
            )));
        }
        let order = Order::try_from(request.order).map_err(|_| {
            invalid(format!(
                "order {} of group {name:?} is unknown",
                request.order
            ))
        })?;
        let shape = shape_named(&request.stream, view)?;
        if self.is_taken(name, &shape, Some(order), view, step)? {
            self.expire_sessions(now_ms, name, step);
        } else {
            self.create_group(now_ms, name, order, &shape, request.start, host, view, step)?;
        }
        let session_ms = match request.session_ms {
            0 => self.limits.default_session_ms,
            wish => wish.clamp(self.limits.min_session_ms, self.limits.max_session_ms),
        };
        let member = self.enter(name, &request.member, &request.client, session_ms, step)?;
        let live = self.live.entry(name.to_owned()).or_default();
        live.sessions
            .entry(member.clone())
            .or_insert_with(|| Session::new(now_ms))
            .seen_ms = now_ms;
        Ok(JoinResponse {
            member,
            session_ms,
            heartbeat_ms: session_ms / 3,
        })
    }

    /// True if the group is there and of this kind; false if its name is free. A group of a deleted stream
    /// ends.
    ///
    /// # Errors
    /// [`ErrorCode::GroupConflict`] if the name is another group's: of Kafka's clients, of another stream, or
    /// with another order.
    pub(crate) fn is_taken(
        &mut self,
        name: &str,
        shape: &StreamShape,
        order: Option<Order>,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<bool, WireError> {
        if self.state.classic.contains_key(name) {
            return Err(other_kind(name));
        }
        if self.state.groups.contains_key(name) && self.shape_of(name, view, step).is_err() {
            tracing::debug!(group = name, "consumer group ended with its stream");
        }
        let Some(group) = self.state.groups.get(name) else {
            return Ok(false);
        };
        let other_order = order.is_some_and(|order| group.order != order);
        if group.kind == KIND_NATIVE && group.stream == shape.id && !other_order {
            return Ok(true);
        }
        Err(WireError::new(
            ErrorCode::GroupConflict,
            format!(
                "consumer group {name:?} reads stream {:?} with {}: join it so, or take another name",
                group.stream_name,
                order_name(group.order),
            ),
        ))
    }

    fn check_room_for_group(
        &mut self,
        name: &str,
        host: &str,
        step: &mut Step,
    ) -> Result<(), WireError> {
        let limit = self.limits.groups;
        let reason = match self.make_room_for_group(host, step) {
            Ok(()) => return Ok(()),
            Err(NoRoom::OfAll) => format!("the limit of {limit} groups is reached, delete some"),
            Err(NoRoom::OfHost) => {
                let host = host.trim_start_matches('/');
                format!(
                    "clients of host {host} have created half of the {limit} groups that may be, delete some of theirs"
                )
            }
        };
        Err(WireError::new(
            ErrorCode::Overloaded,
            format!("consumer group {name:?} cannot be created: {reason}"),
        ))
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn create_group(
        &mut self,
        now_ms: u64,
        name: &str,
        order: Order,
        shape: &StreamShape,
        start: Option<StartAt>,
        host: &str,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<(), WireError> {
        self.check_room_for_group(name, host, step)?;
        let mut places = Vec::new();
        if let Some(at) = start.and_then(|start| start.at) {
            places = chosen_ordinals(shape, &at, None, None, view)?;
            // Made anew, the group would begin at ordinal 0 as well.
            let is_earliest = matches!(at, start_at::At::Earliest(_));
            places.retain(|(_, ordinal)| *ordinal > 0 || !is_earliest);
        }
        self.emit(
            step,
            name,
            Body::GroupCreated(GroupCreated {
                kind: KIND_NATIVE,
                stream: shape.id.as_bytes().to_vec(),
                stream_name: shape.name.clone(),
                order: order as i32,
                created_ms: now_ms,
                next_lease: 1,
                next_member: 1,
                created_by: host.to_owned(),
            }),
        );
        self.place(name, &places, step);
        Ok(())
    }

    /// Adds the member, or recognises it. Returns its id.
    fn enter(
        &mut self,
        name: &str,
        wanted: &str,
        client: &str,
        session_ms: u32,
        step: &mut Step,
    ) -> Result<String, WireError> {
        let group = self.group(name)?;
        let (member, number) = match group.members.get(wanted) {
            Some(member) if member.client == client && member.session_ms == session_ms => {
                return Ok(wanted.to_owned());
            }
            Some(member) => (wanted.to_owned(), member.number),
            None if group.members.len() >= self.limits.members => {
                return Err(WireError::new(
                    ErrorCode::Overloaded,
                    format!(
                        "consumer group {name:?} is full: it has {} members",
                        group.members.len()
                    ),
                ));
            }
            // The time of the group's creation keeps members of a deleted group apart.
            None => {
                let prefix = if client.is_empty() { "member" } else { client };
                let number = group.next_member;
                (format!("{prefix}-{:x}-{number}", group.created_ms), number)
            }
        };
        self.emit(
            step,
            name,
            Body::MemberJoined(MemberJoined {
                member: member.clone(),
                client: client.to_owned(),
                session_ms,
                number,
                ended: Vec::new(),
            }),
        );
        Ok(member)
    }

    /// Checks that the member exists and notes that it is alive.
    pub(crate) fn touch(&mut self, now_ms: u64, name: &str, member: &str) -> Result<(), WireError> {
        self.group(name)?;
        let session = self
            .live
            .get_mut(name)
            .and_then(|live| live.sessions.get_mut(member))
            .ok_or_else(|| {
                WireError::new(
                    ErrorCode::UnknownMember,
                    format!("{member:?} is not a member of consumer group {name:?}: join again"),
                )
            })?;
        session.seen_ms = session.seen_ms.max(now_ms);
        Ok(())
    }

    pub(crate) fn heartbeat(
        &mut self,
        now_ms: u64,
        request: HeartbeatRequest,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<HeartbeatResponse, WireError> {
        let name = request.group.as_str();
        let shape = self.shape_of(name, view, step)?;
        self.touch(now_ms, name, &request.member)?;
        if request.leases.len() > self.limits.leases_per_member * 2 {
            return Err(invalid(format!(
                "heartbeat of member {:?} lists {} leases, more than it can hold",
                request.member,
                request.leases.len()
            )));
        }
        let mut listed = request.leases;
        listed.sort_unstable();
        let member = &self.state.groups[name].members[&request.member];
        let lost = listed.iter().filter(|lease| !member.leases.contains(lease));
        let mut lost: Vec<u64> = lost.copied().collect();
        // Leases that the member does not know although they were granted a while ago: their
        // grant was lost on its way.
        let grace_ms = u64::from(member.session_ms / 3);
        let mut forgotten = Vec::new();
        if let Some(session) = self
            .live
            .get_mut(name)
            .and_then(|live| live.sessions.get_mut(&request.member))
        {
            session
                .granted_ms
                .retain(|lease, _| member.leases.contains(lease));
            for lease in &member.leases {
                let granted_ms = session.granted_ms.get(lease).copied().unwrap_or(0);
                if listed.binary_search(lease).is_err()
                    && granted_ms.saturating_add(grace_ms) <= now_ms
                {
                    forgotten.push(*lease);
                }
            }
        }
        let any_forgotten = !forgotten.is_empty();
        // The grant may have arrived since this was sent.
        lost.extend_from_slice(&forgotten);
        if any_forgotten {
            self.emit(
                step,
                name,
                Body::LeasesEnded(LeasesEnded { leases: forgotten }),
            );
        }
        let give_back = self.give_back(now_ms, name, &request.member, &shape, view);
        if any_forgotten {
            self.serve(now_ms, name, view, step);
        }
        Ok(HeartbeatResponse { give_back, lost })
    }

    /// Which leases a member holds beyond its share, or to the end of their lane generation.
    fn give_back(
        &mut self,
        now_ms: u64,
        name: &str,
        member: &str,
        shape: &StreamShape,
        view: &dyn LaneView,
    ) -> Vec<u64> {
        let give_back = match self.state.groups[name].order {
            Order::Lane => self.lanes_to_give_back(now_ms, name, member, shape, view),
            Order::Key => self.slices_to_give_back(now_ms, name, member, shape, view),
            Order::None => return Vec::new(),
        };
        if let Some(session) = self
            .live
            .get_mut(name)
            .and_then(|live| live.sessions.get_mut(member))
        {
            session
                .told_ms
                .retain(|lease, _| give_back.binary_search(lease).is_ok());
            for lease in &give_back {
                session.told_ms.entry(*lease).or_insert(now_ms);
            }
        }
        give_back
    }

    /// Sorted.
    fn lanes_to_give_back(
        &self,
        now_ms: u64,
        name: &str,
        member: &str,
        shape: &StreamShape,
        view: &dyn LaneView,
    ) -> Vec<u64> {
        let group = &self.state.groups[name];
        let mut give_back = shares::finished_generations(group, member, shape, view);
        let held = group.members[member].leases.len();
        let target = shares::target_of(group, self.live.get(name), member, shape, view, now_ms);
        let over = held.saturating_sub(target).saturating_sub(give_back.len());
        let more: Vec<u64> = group.members[member]
            .leases
            .iter()
            .rev()
            .filter(|lease| !give_back.contains(lease))
            .take(over)
            .copied()
            .collect();
        give_back.extend(more);
        give_back.sort_unstable();
        give_back
    }

    pub(crate) fn leave(
        &mut self,
        now_ms: u64,
        request: LeaveRequest,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<LeaveResponse, WireError> {
        let name = request.group.as_str();
        let is_member = self
            .state
            .groups
            .get(name)
            .is_some_and(|group| group.members.contains_key(&request.member));
        // A repeated request finds nothing left to do.
        if is_member {
            self.remove_member(name, &request.member, false, step);
            self.serve(now_ms, name, view, step);
        }
        Ok(LeaveResponse {})
    }

    fn remove_member(&mut self, name: &str, member: &str, expired: bool, step: &mut Step) {
        self.emit(
            step,
            name,
            Body::MemberLeft(MemberLeft {
                member: member.to_owned(),
                expired,
            }),
        );
        if let Some(live) = self.live.get_mut(name) {
            live.sessions.remove(member);
            live.waiters.retain(|waiter| {
                if waiter.member != member {
                    return true;
                }
                let answer = if expired {
                    Err(WireError::new(
                        ErrorCode::UnknownMember,
                        format!(
                            "session of member {member:?} of group {name:?} expired: join again"
                        ),
                    ))
                } else {
                    Ok(Reply::Acquire(Default::default()))
                };
                step.replies.push((waiter.ticket, answer));
                false
            });
        }
        self.note_waiting(name);
    }

    pub(crate) fn expire_sessions(&mut self, now_ms: u64, name: &str, step: &mut Step) {
        let (Some(group), Some(live)) = (self.state.groups.get(name), self.live.get(name)) else {
            return;
        };
        let expired: Vec<String> = group
            .members
            .iter()
            .filter(|(id, member)| {
                live.sessions.get(*id).is_none_or(|session| {
                    session.seen_ms.saturating_add(member.session_ms.into()) <= now_ms
                })
            })
            .map(|(id, _)| id.clone())
            .collect();
        for member in expired {
            tracing::info!(group = name, member, "session of a consumer expired");
            self.remove_member(name, &member, true, step);
        }
    }

    /// Ends leases whose members were told long ago to give them back.
    pub(crate) fn revoke_overdue(&mut self, now_ms: u64, name: &str, step: &mut Step) {
        let Some(live) = self.live.get_mut(name) else {
            return;
        };
        let limit = self.limits.give_back_ms;
        let mut overdue = Vec::new();
        for session in live.sessions.values_mut() {
            session.told_ms.retain(|lease, told_ms| {
                let over = told_ms.saturating_add(limit) <= now_ms;
                if over {
                    overdue.push(*lease);
                }
                !over
            });
        }
        let group = &self.state.groups[name];
        overdue.retain(|lease| group.leases.contains_key(lease));
        if !overdue.is_empty() {
            self.emit(
                step,
                name,
                Body::LeasesEnded(LeasesEnded { leases: overdue }),
            );
        }
    }
}

pub(crate) fn invalid(message: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, message)
}

/// The stream of that name.
///
/// # Errors
/// [`ErrorCode::UnknownStream`].
pub(crate) fn shape_named(name: &str, view: &dyn LaneView) -> Result<StreamShape, WireError> {
    view.stream_by_name(name).ok_or_else(|| {
        WireError::new(
            ErrorCode::UnknownStream,
            format!("stream {name:?} does not exist: create it or check the name"),
        )
    })
}

fn order_name(order: Order) -> &'static str {
    match order {
        Order::Lane => "order=lane",
        Order::None => "order=none",
        Order::Key => "order=key",
    }
}

/// Whether a native consumer group may have this name.
///
/// # Errors
/// [`ErrorCode::InvalidName`].
pub fn check_group_name(name: &str) -> Result<(), WireError> {
    let legal = (1..=MAX_NAME_BYTES).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if legal {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(WireError::new(
        ErrorCode::InvalidName,
        format!(
            "consumer group name {shown:?} is not legal: use 1 to {MAX_NAME_BYTES} of a-z A-Z 0-9 . _ -"
        ),
    ))
}
