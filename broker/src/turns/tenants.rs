//! Users that share what nobody is guaranteed: what each has used, what it owes, and which of them is next.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::Ticket;

/// Tenants at which those are forgotten first that are ahead of nobody.
pub(super) const FIRST_SWEEP: usize = 64;

/// A user that has no guarantee, or has used it up.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    /// Tokens that it has taken, counted from where the others were when it began.
    pub(super) used: f64,
    /// Tokens that its requests cost and that it has still to take, before it goes on.
    pub(super) owes: f64,
    pub(super) waiting: VecDeque<Arc<Ticket>>,
}

impl Tenant {
    fn owes(&self) -> bool {
        self.owes > 0.0
    }

    fn is_in_line(&self) -> bool {
        self.owes() || !self.waiting.is_empty()
    }
}

/// A tenant's place: who has used less is before others.
#[derive(Clone, Debug)]
struct Place {
    used: f64,
    user: Arc<str>,
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_use = self.used.total_cmp(&other.used);
        by_use.then_with(|| self.user.cmp(&other.user))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Place {}

/// All tenants. Those that wait or owe are kept in order, so that the next one is found among thousands without a look at each.
#[derive(Debug)]
pub(super) struct Tenants {
    by_user: HashMap<Arc<str>, Tenant>,
    /// Those that wait or owe.
    line: BTreeSet<Place>,
    /// Those that owe.
    owing: BTreeSet<Place>,
    /// Tickets that wait.
    waiting: usize,
    sweep_at: usize,
}

impl Tenants {
    pub(super) fn new() -> Self {
        Self {
            by_user: HashMap::new(),
            line: BTreeSet::new(),
            owing: BTreeSet::new(),
            waiting: 0,
            sweep_at: FIRST_SWEEP,
        }
    }

    pub(super) fn get(&self, user: &str) -> Option<&Tenant> {
        self.by_user.get(user)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &Tenant> {
        self.by_user.values()
    }

    pub(super) fn owes(&self, user: &str) -> bool {
        self.get(user).is_some_and(Tenant::owes)
    }

    /// How many owe something.
    pub(super) fn owing(&self) -> usize {
        self.owing.len()
    }

    /// How many tickets wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Of those that wait or owe, which has used least, and how much.
    pub(super) fn next(&self) -> Option<(Arc<str>, f64)> {
        let first = self.line.first();
        first.map(|place| (place.user.clone(), place.used))
    }

    /// The same of those that owe.
    pub(super) fn next_that_owes(&self) -> Option<(Arc<str>, f64)> {
        let first = self.owing.first();
        first.map(|place| (place.user.clone(), place.used))
    }

    /// Changes a tenant, and its place. `None`: there is no such tenant.
    pub(super) fn change<T>(
        &mut self,
        user: &str,
        change: impl FnOnce(&mut Tenant) -> T,
    ) -> Option<T> {
        let tenant = self.by_user.get_mut(user)?;
        let (in_line, owed) = (tenant.is_in_line(), tenant.owes());
        let (used, waited) = (tenant.used, tenant.waiting.len());
        let changed = change(tenant);
        self.waiting = self.waiting - waited + tenant.waiting.len();
        let has_moved = tenant.used.total_cmp(&used).is_ne();
        for (places, before, after) in [
            (&mut self.line, in_line, tenant.is_in_line()),
            (&mut self.owing, owed, tenant.owes()),
        ] {
            if !before && !after || before == after && !has_moved {
                continue;
            }
            let mut place = Place {
                used,
                user: user.into(),
            };
            if before {
                places.remove(&place);
            }
            if after {
                place.used = tenant.used;
                places.insert(place);
            }
        }
        Some(changed)
    }

    /// Changes a tenant that is made if there is none. Nobody saves up for later: one that does not wait begins at `clock`.
    pub(super) fn enter<T>(
        &mut self,
        user: &Arc<str>,
        clock: f64,
        change: impl FnOnce(&mut Tenant) -> T,
    ) -> T {
        if !self.by_user.contains_key(user) {
            if self.by_user.len() >= self.sweep_at {
                self.by_user
                    .retain(|_, tenant| tenant.is_in_line() || tenant.used > clock);
                self.sweep_at = (self.by_user.len() * 2).max(FIRST_SWEEP);
            }
            self.by_user.insert(user.clone(), Tenant::default());
        }
        let entered = self.change(user, |tenant| {
            if tenant.waiting.is_empty() {
                tenant.used = tenant.used.max(clock);
            }
            change(tenant)
        });
        entered.expect("it is there")
    }

    /// Nobody is ahead of anybody, and nobody waits or owes.
    pub(super) fn clear(&mut self) {
        debug_assert!(self.line.is_empty(), "tenants wait or owe");
        self.by_user.clear();
        self.sweep_at = FIRST_SWEEP;
    }

    /// Nobody owes anything.
    pub(super) fn forgive(&mut self) {
        for user in std::mem::take(&mut self.owing) {
            let tenant = self.by_user.get_mut(&user.user).expect("it owes");
            tenant.owes = 0.0;
            if !tenant.is_in_line() {
                self.line.remove(&user);
            }
        }
    }

    /// Places are those of the tenants.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let places = |which: fn(&Tenant) -> bool| -> BTreeSet<Place> {
            let tenants = self.by_user.iter().filter(|(_, tenant)| which(tenant));
            tenants
                .map(|(user, tenant)| Place {
                    used: tenant.used,
                    user: user.clone(),
                })
                .collect()
        };
        assert_eq!(self.line, places(Tenant::is_in_line));
        assert_eq!(self.owing, places(Tenant::owes));
        let waiting = self.all().map(|tenant| tenant.waiting.len());
        assert_eq!(self.waiting, waiting.sum::<usize>());
    }
}
