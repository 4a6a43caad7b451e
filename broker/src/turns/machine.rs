//! Whose request is next: buckets of tokens and waiting tenants, without clock, threads and sockets.
//!
//! After ReFlex (Klimovic, Litz, Kozyrakis, ASPLOS 2017). Tokens come at the rate of what clients may use. A user with an
//! objective gets those that it is guaranteed into a bucket of its own, and goes on at once as long as it has not used more than
//! that and a burst. What overflows its bucket goes to all others, with what nobody is guaranteed. The others, and who has used
//! up its guarantee, go on while there are such tokens. Else they wait, and the one that has used least is next.
//!
//! A turn takes no more than a piece of the tokens that others share. What it costs above that is owed by the user whose turn it
//! is, and so is what was done without a turn. A user that owes does not go on: when it is next, a piece of its debt is paid.
//! So a user that made no debts waits for one piece of each other user, and never for what they owe.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ticket;
use super::tenants::Tenants;

/// A bucket of guaranteed tokens holds what comes in this time, and may owe as much,
const BURST: Duration = Duration::from_millis(50);
/// or so many requests, if that is more.
const BURST_REQUESTS: f64 = 16.0;
/// Others have at once what comes in this part of the shortest latency that is promised,
const SPARE_PART: f64 = 0.25;
/// but in no less than this: it is about how often they are looked at,
const LEAST_SPARE: f64 = 0.002;
/// and no more.
const MOST_SPARE: f64 = 0.02;
/// A bucket of guaranteed tokens holds no more than what comes in so many seconds, however few requests are guaranteed.
const MOST_BURST: f64 = 10.0;
/// A turn takes at once what comes in this time, and a debt is paid in pieces of it.
const PIECE: f64 = LEAST_SPARE;
/// A user owes no more than all tokens that come in so many seconds, so that it goes on some day. It may be less than what it
/// used: all its connections can have a request under way.
const MOST_OWED: f64 = 60.0;
/// The part of all tokens that others get at the least.
const LEAST_SHARE: f64 = 0.1;
/// Those that wait are looked at no more often.
const LEAST_PAUSE: Duration = Duration::from_micros(500);

/// What an objective guarantees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Guarantee {
    /// Tokens a second.
    pub(super) rate: f64,
    /// Requests a second in that.
    pub(super) requests: f64,
    /// Seconds.
    pub(super) latency: f64,
}

/// The bucket of a user with an objective.
#[derive(Debug)]
struct Critical {
    rate: f64,
    burst: f64,
    tokens: f64,
}

impl Critical {
    fn may_go(&self) -> bool {
        self.tokens > -self.burst
    }
}

/// Of which tokens something was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Of those that the user is guaranteed.
    Critical,
    /// Of those that others share.
    BestEffort,
}

/// The state of all buckets and of all that wait.
#[derive(Debug)]
pub(super) struct Machine {
    /// Tokens a second of all.
    rate: f64,
    /// Tokens a second that objectives guarantee, if that can be.
    asked: f64,
    /// Tokens for those without a guarantee.
    spare: f64,
    most_spare: f64,
    at: Instant,
    critical: HashMap<Arc<str>, Critical>,
    tenants: Tenants,
    /// How much the tenant had used that was served last. Who comes anew begins there.
    clock: f64,
}

impl Machine {
    /// Nobody has an objective yet.
    pub(super) fn new(rate: f64, now: Instant) -> Self {
        Self {
            rate,
            asked: 0.0,
            spare: 0.0,
            most_spare: rate * LEAST_SPARE,
            at: now,
            critical: HashMap::new(),
            tenants: Tenants::new(),
            clock: 0.0,
        }
    }

    /// The objectives are these from now on. Who had one before keeps what is in its bucket.
    pub(super) fn set(&mut self, guarantees: &[(Arc<str>, Guarantee)], now: Instant) {
        self.fill(now);
        let mut before = std::mem::take(&mut self.critical);
        let mut latency = f64::INFINITY;
        // More than there is cannot be guaranteed: each gets its part.
        let asked: f64 = guarantees.iter().map(|(_, one)| one.rate).sum();
        let part = (self.rate * (1.0 - LEAST_SHARE) / asked).min(1.0);
        self.asked = asked;
        for (user, guarantee) in guarantees {
            latency = latency.min(guarantee.latency);
            let rate = guarantee.rate * part;
            let in_time = rate * BURST.as_secs_f64();
            let burst = in_time.max(rate / guarantee.requests * BURST_REQUESTS);
            let burst = burst.min(rate * MOST_BURST);
            let tokens = before.remove(user).map_or(burst, |known| known.tokens);
            let critical = Critical {
                rate,
                burst,
                tokens: tokens.min(burst),
            };
            self.critical.insert(user.clone(), critical);
        }
        let seconds = (latency * SPARE_PART).clamp(LEAST_SPARE, MOST_SPARE);
        self.most_spare = self.rate * seconds;
        self.spare = self.spare.min(self.most_spare);
        if guarantees.is_empty() {
            // Nobody waits for anybody, and nothing is owed.
            self.tenants.forgive();
        }
    }

    /// Tokens a second that nobody is guaranteed.
    fn rest(&self) -> f64 {
        let guaranteed: f64 = self.critical.values().map(|one| one.rate).sum();
        (self.rate - guaranteed).max(self.rate * LEAST_SHARE)
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.spare += passed * self.rest();
        for critical in self.critical.values_mut() {
            critical.tokens += passed * critical.rate;
            // What its user does not need is for the others.
            self.spare += (critical.tokens - critical.burst).max(0.0);
            critical.tokens = critical.tokens.min(critical.burst);
        }
        if self.spare >= self.most_spare {
            // What nobody has taken, and what there is no room for, pays what is owed.
            self.pay(self.spare - self.most_spare);
            self.spare = self.most_spare;
            if self.tenants.waiting() == 0 && self.tenants.owing() == 0 {
                // There was enough for all: nobody is ahead of anybody.
                self.tenants.clear();
                self.clock = 0.0;
            }
        }
    }

    /// A user wants to go on with something that costs about `cost`: of which tokens that is taken, or `None` if it waits.
    pub(super) fn ask(&mut self, user: &Arc<str>, cost: f64, now: Instant) -> Option<Class> {
        self.fill(now);
        if let Some(own) = self.critical.get_mut(user).filter(|own| own.may_go()) {
            own.tokens -= cost;
            return Some(Class::Critical);
        }
        if self.tenants.waiting() > 0 {
            return None;
        }
        if self.tenants.owing() > 0 {
            self.pay_before(user);
        }
        if self.spare <= 0.0 || self.tenants.owes(user) {
            return None;
        }
        let part = cost.min(self.piece());
        let before = self.tenants.enter(user, self.clock, |tenant| {
            let before = tenant.used;
            tenant.used += part;
            before
        });
        self.clock = self.clock.max(before);
        self.spare -= part;
        self.owe(user, cost - part);
        Some(Class::BestEffort)
    }

    fn piece(&self) -> f64 {
        self.rate * PIECE
    }

    /// Pays what others owe from what may be spared, as far as they have used less than a user that is about to go on, and what it
    /// owes itself.
    fn pay_before(&mut self, user: &Arc<str>) {
        while self.spare > 0.0 {
            let Some((debtor, debtor_used)) = self.tenants.next_that_owes() else {
                return;
            };
            let own = self.tenants.get(user);
            let used = own.map_or(0.0, |own| own.used).max(self.clock);
            if debtor_used >= used && !self.tenants.owes(user) {
                return;
            }
            self.pay_one(&debtor, self.spare);
        }
    }

    /// Pays a piece of what one tenant owes, and no more than `most`, from what may be spared.
    fn pay_one(&mut self, user: &Arc<str>, most: f64) {
        let piece = self.piece().min(most);
        self.spare -= self.take_off(user, piece);
    }

    /// A tenant takes up to `most` tokens that it owes: how many.
    fn take_off(&mut self, user: &Arc<str>, most: f64) -> f64 {
        let taken = self.tenants.change(user, |tenant| {
            let (paid, before) = (tenant.owes.min(most), tenant.used);
            tenant.used += paid;
            tenant.owes -= paid;
            (paid, before)
        });
        let Some((paid, before)) = taken else {
            return 0.0;
        };
        self.clock = self.clock.max(before);
        paid
    }

    /// Pays with tokens that are of no use to anybody else what is owed.
    fn pay(&mut self, mut tokens: f64) {
        while tokens > 0.0
            && let Some((user, _)) = self.tenants.next_that_owes()
        {
            let owing = self.tenants.owing();
            let piece = self.piece().max(tokens / (2.0 * owing as f64));
            tokens -= self.take_off(&user, piece.min(tokens));
        }
    }

    /// Something cost so much more than the user has taken for it.
    fn owe(&mut self, user: &Arc<str>, more: f64) {
        if more <= 0.0 || self.critical.is_empty() {
            return;
        }
        let most = self.rate * MOST_OWED;
        self.tenants.enter(user, self.clock, |tenant| {
            tenant.owes = (tenant.owes + more).min(most.max(tenant.owes));
        });
    }

    /// So much was taken by a tenant and is not needed: it owes less, and what it has paid may be spared again as far as there is room.
    fn give_back(&mut self, user: &Arc<str>, tokens: f64) {
        let room = (self.most_spare - self.spare).max(0.0);
        let back = self.tenants.change(user, |tenant| {
            let unpaid = tenant.owes.min(tokens);
            tenant.owes -= unpaid;
            // What others cannot have back it has used: else it would be before them again.
            let back = (tokens - unpaid).min(room);
            tenant.used = (tenant.used - back).max(0.0);
            back
        });
        self.spare += back.unwrap_or(tokens.min(room));
    }

    /// Who was told to wait does so with this.
    pub(super) fn wait(&mut self, ticket: Arc<Ticket>) {
        let user = ticket.user.clone();
        self.tenants
            .enter(&user, self.clock, |tenant| tenant.waiting.push_back(ticket));
    }

    /// Something cost so much more than was taken for it, or less.
    pub(super) fn settle(&mut self, user: &Arc<str>, class: Class, more: f64) {
        match (class, self.critical.get_mut(user)) {
            (Class::Critical, Some(own)) => {
                own.tokens -= more;
                // While it had them its bucket had room for what others would have got.
                let over = (own.tokens - own.burst).max(0.0);
                own.tokens -= over;
                self.spare = (self.spare + over).min(self.most_spare);
            }
            // Its objective may have ended meanwhile.
            (Class::Critical, None) | (Class::BestEffort, _) if more >= 0.0 => {
                self.owe(user, more);
                if self.tenants.waiting() == 0 && self.tenants.owing() > 0 {
                    self.pay_before(user);
                }
            }
            (Class::Critical, None) => {}
            (Class::BestEffort, _) => self.give_back(user, -more),
        }
    }

    /// Something was done that did not wait for its turn.
    pub(super) fn force(&mut self, user: &Arc<str>, cost: f64, now: Instant) -> Class {
        self.fill(now);
        match self.critical.get_mut(user).filter(|own| own.may_go()) {
            Some(own) => {
                own.tokens -= cost;
                Class::Critical
            }
            None => {
                self.settle(user, Class::BestEffort, cost);
                Class::BestEffort
            }
        }
    }

    /// Those whose turn it is now, and of which tokens.
    pub(super) fn advance(&mut self, now: Instant) -> Vec<(Arc<Ticket>, Class)> {
        self.fill(now);
        let mut granted = Vec::new();
        if self.tenants.waiting() == 0 {
            return granted;
        }
        // Guarantees come first, those that were used up and have tokens again too.
        for (user, own) in &mut self.critical {
            while own.may_go() {
                let first = self
                    .tenants
                    .change(user, |tenant| tenant.waiting.pop_front());
                let Some(ticket) = first.flatten() else { break };
                own.tokens -= ticket.estimate;
                granted.push((ticket, Class::Critical));
            }
        }
        while self.spare > 0.0 || self.critical.is_empty() {
            let Some((user, used)) = self.tenants.next() else {
                break;
            };
            if self.tenants.owes(&user) {
                self.pay_one(&user, self.spare);
                continue;
            }
            let piece = self.piece();
            let first = self.tenants.change(&user, |tenant| {
                let ticket = tenant.waiting.pop_front()?;
                let part = ticket.estimate.min(piece);
                tenant.used += part;
                Some((ticket, part))
            });
            let Some((ticket, part)) = first.flatten() else {
                break;
            };
            self.clock = self.clock.max(used);
            self.spare -= part;
            self.owe(&user, ticket.estimate - part);
            granted.push((ticket, Class::BestEffort));
        }
        granted
    }

    /// Who waited with it does so no more. False: it did not wait.
    pub(super) fn leave(&mut self, ticket: &Arc<Ticket>) -> bool {
        let left = self.tenants.change(&ticket.user, |tenant| {
            let before = tenant.waiting.len();
            tenant.waiting.retain(|one| !Arc::ptr_eq(one, ticket));
            before > tenant.waiting.len()
        });
        left.unwrap_or(false)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.tenants.waiting()
    }

    /// After how long to [advance](Self::advance) if somebody waits.
    pub(super) fn pause(&self) -> Option<Duration> {
        if self.tenants.waiting() == 0 {
            return None;
        }
        let seconds = -self.spare / self.rest();
        Some(Duration::from_secs_f64(seconds.max(0.0)).max(LEAST_PAUSE))
    }

    /// What objectives guarantee, as a part of all tokens: more than one where not all can be met.
    pub(super) fn guaranteed(&self) -> f64 {
        self.asked / self.rate
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
