//! Members of the share group, which come and go, and vanish with what they have acquired.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    ApiKey, GroupId, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, TopicName,
};
use tokio::time::sleep;

use super::cluster::{Cluster, View, words};
use super::session::{Mood, Session};
use super::wire::Connection;
use super::{GROUP_NAME, Shared};
use crate::dice::Dice;
use crate::os;

/// Pause where there is nothing to do, or nobody to do it with.
const IDLE: Duration = Duration::from_millis(100);
/// The epoch of a heartbeat that joins, and of one that leaves.
const JOINS: i32 = 0;
const LEAVES: i32 = -1;
/// Sessions of one member after the other have numbers from a multiple of this on.
const NUMBERS_EACH: u64 = 1_000_000;

/// One member.
struct Member {
    shared: Arc<Shared>,
    id: String,
    cluster: Cluster,
    view: Option<View>,
    coordinator: Option<Connection>,
    epoch: i32,
    next_beat: Duration,
    assigned: BTreeSet<i32>,
    /// By broker.
    sessions: BTreeMap<i32, Session>,
    mood: Mood,
}

/// A member after the other, until `is_over`.
pub async fn run(shared: Arc<Shared>, number: u32, mut dice: Dice, is_over: Arc<AtomicBool>) {
    let over = || is_over.load(Ordering::SeqCst);
    let mut session = u64::from(number) * NUMBERS_EACH;
    // Connections of those that vanished without closing them: what they acquired is locked for as long as it may be.
    let mut vanished = Vec::new();
    let mut life = 0;
    while !over() {
        life += 1;
        let mut member = Member::new(&shared, format!("m{number}-{life}"), number, &mut dice);
        let until = os::now() + Duration::from_millis(dice.between(1_000, 40_000));
        // The last one stays to the end.
        while !over() && (os::now() < until || shared.load.is_stopping()) {
            member.step(&mut session, &mut dice).await;
        }
        match dice.below(10) {
            _ if over() => {}
            0..=2 => {
                if dice.chance(500) {
                    member.leave().await;
                }
                for session in member.sessions.values_mut() {
                    session.abandon();
                }
                vanished.push(std::mem::take(&mut member.sessions));
            }
            // Its process ends, and with it its connections.
            3..=4 => {}
            _ => {
                let accepts = dice.chance(500);
                for session in member.sessions.values_mut() {
                    // Whoever cannot say so is gone all the same.
                    let _ = session.end(accepts).await;
                }
                member.leave().await;
            }
        }
        for session in member.sessions.values_mut() {
            session.abandon();
        }
    }
}

impl Member {
    fn new(shared: &Arc<Shared>, id: String, number: u32, dice: &mut Dice) -> Self {
        let work = Duration::from_millis(*dice.one(&[5, 100, 500]));
        Self {
            shared: shared.clone(),
            id,
            cluster: Cluster::new(shared.addresses(), number as usize),
            view: None,
            coordinator: None,
            epoch: JOINS,
            next_beat: Duration::ZERO,
            assigned: BTreeSet::new(),
            sessions: BTreeMap::new(),
            mood: Mood {
                work,
                slow: *dice.one(&[0, 50, 300]),
                records: *dice.one(&[3, 20, 100]),
                wait: Duration::from_millis(*dice.one(&[20, 200, 500])),
            },
        }
    }

    async fn step(&mut self, session: &mut u64, dice: &mut Dice) {
        if os::now() >= self.next_beat {
            let pause = match self.beat(self.epoch).await {
                Ok(()) => Duration::from_millis(dice.between(300, 3_000)),
                Err(error) => {
                    os::log(&format!("{}: {error}", self.id));
                    self.coordinator = None;
                    IDLE * 2
                }
            };
            self.next_beat = os::now() + pause;
        }
        if self.view.is_none() {
            match self.cluster.view(self.shared.name()).await {
                Ok(view) => self.view = Some(view),
                Err(error) => {
                    os::log(&format!("{}: {error}", self.id));
                    return sleep(IDLE).await;
                }
            }
        }
        let by_leader = self.by_leader();
        let led: usize = by_leader.values().map(BTreeSet::len).sum();
        for (broker, partitions) in by_leader {
            match self.at(broker, &partitions, session, dice).await {
                Ok(true) => {}
                Ok(false) => {
                    self.view = None;
                    sleep(IDLE).await;
                }
                Err(error) => {
                    os::log(&format!("{}: {error}", self.id));
                    self.view = None;
                    if let Some(mut session) = self.sessions.remove(&broker) {
                        session.abandon();
                    }
                    sleep(IDLE).await;
                }
            }
        }
        // A partition that was added, or that nobody leads now, has a leader later.
        if led < self.assigned.len() {
            self.view = None;
        }
        if led < self.assigned.len() || led == 0 {
            sleep(IDLE).await;
        }
    }

    /// What is to be read at which broker; brokers with sessions are among them.
    fn by_leader(&self) -> BTreeMap<i32, BTreeSet<i32>> {
        let sessions = self.sessions.keys();
        let mut by_leader: BTreeMap<i32, BTreeSet<i32>> =
            sessions.map(|broker| (*broker, BTreeSet::new())).collect();
        if let Some(view) = &self.view {
            for partition in &self.assigned {
                let leader = view.leaders.get(partition);
                if let Some(leader) = leader.filter(|leader| view.brokers.contains_key(leader)) {
                    by_leader.entry(*leader).or_default().insert(*partition);
                }
            }
        }
        by_leader
    }

    /// Its turn at a broker. Whether it serves the partitions.
    async fn at(
        &mut self,
        broker: i32,
        partitions: &BTreeSet<i32>,
        number: &mut u64,
        dice: &mut Dice,
    ) -> Result<bool, String> {
        if !self.sessions.contains_key(&broker) {
            let Some(view) = &self.view else {
                return Ok(false);
            };
            let connection = Connection::open(view.brokers[&broker]).await?;
            *number += 1;
            let (shared, topic) = (&self.shared, view.topic);
            let begun = Session::new(shared, *number, broker, connection, topic, &self.id);
            self.sessions.insert(broker, begun);
        }
        let Some(session) = self.sessions.get_mut(&broker) else {
            return Ok(false);
        };
        if partitions.is_empty() && session.is_idle() {
            let ended = session.end(false).await;
            session.abandon();
            self.sessions.remove(&broker);
            return ended.map(|()| true);
        }
        session.turn(partitions, &self.mood, dice).await
    }

    /// A heartbeat; with it comes what is to be read.
    async fn beat(&mut self, epoch: i32) -> Result<(), String> {
        let mut connection = match self.coordinator.take() {
            Some(connection) => connection,
            None => self.cluster.coordinator().await?,
        };
        let topics = vec![TopicName(words(self.shared.name()))];
        let request = ShareGroupHeartbeatRequest::default()
            .with_group_id(GroupId(words(GROUP_NAME)))
            .with_member_id(words(&self.id))
            .with_member_epoch(epoch)
            .with_subscribed_topic_names((epoch == JOINS).then_some(topics));
        let api = ApiKey::ShareGroupHeartbeat;
        let answer = connection.call(api, 1, &request, Duration::ZERO).await;
        let answer: ShareGroupHeartbeatResponse = answer?;
        let is = |error: ResponseError| answer.error_code == error.code();
        if is(ResponseError::UnknownMemberId) || is(ResponseError::FencedMemberEpoch) {
            self.epoch = JOINS;
            self.assigned.clear();
        } else if answer.error_code != 0
            && !is(ResponseError::NotCoordinator)
            && !is(ResponseError::CoordinatorNotAvailable)
            && !is(ResponseError::CoordinatorLoadInProgress)
        {
            let text = format!(
                "a heartbeat of {} is refused: error {}, {:?}",
                self.id, answer.error_code, answer.error_message
            );
            self.shared.load.complain(text);
        }
        if answer.error_code != 0 {
            return Err(format!("a heartbeat: error {}", answer.error_code));
        }
        self.coordinator = Some(connection);
        self.epoch = answer.member_epoch;
        if let Some(assignment) = answer.assignment {
            let topics = assignment.topic_partitions.into_iter();
            self.assigned = topics.flat_map(|topic| topic.partitions).collect();
        }
        Ok(())
    }

    /// Tells the coordinator that it goes, if that can be told.
    async fn leave(&mut self) {
        if self.epoch > JOINS
            && let Err(error) = self.beat(LEAVES).await
        {
            os::log(&format!("{}: {error}", self.id));
        }
    }
}
