//! Plants in leases and commits.

use std::collections::BTreeMap;

use kera_history::{Event, Lane, LeaseRef, Reader};

use super::Plot;

#[derive(Clone, Copy, Debug)]
struct Granted {
    index: usize,
    lease: LeaseRef,
    member: u32,
    lane: Lane,
    start: u64,
    end: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Commit {
    index: usize,
    ordinal: u64,
    asked: u64,
}

fn grants(plot: &Plot) -> BTreeMap<LeaseRef, Granted> {
    let grant = |(index, entry): (usize, &kera_history::Entry)| match entry.event {
        Event::LeaseGranted {
            lease,
            member,
            lane,
            start,
            end,
        } => Some((
            lease,
            Granted {
                index,
                lease,
                member,
                lane,
                start,
                end,
            },
        )),
        _ => None,
    };
    plot.entries.iter().enumerate().filter_map(grant).collect()
}

/// Each lease's commits that raised it, in order.
fn commits(plot: &Plot) -> BTreeMap<LeaseRef, Vec<Commit>> {
    let mut commits: BTreeMap<_, Vec<Commit>> = BTreeMap::new();
    let grants = grants(plot);
    for (index, entry) in plot.entries.iter().enumerate() {
        if let Event::Committed {
            lease,
            ordinal,
            asked,
        } = entry.event
        {
            let of_lease = commits.entry(lease).or_default();
            let before = of_lease.last().map_or(grants[&lease].start, |c| c.ordinal);
            if ordinal > before {
                of_lease.push(Commit {
                    index,
                    ordinal,
                    asked,
                });
            }
        }
    }
    commits.retain(|_, of_lease| !of_lease.is_empty());
    commits
}

fn pick_commit(plot: &mut Plot) -> Option<(Granted, Vec<Commit>)> {
    let grants = grants(plot);
    let commits: Vec<_> = commits(plot).into_iter().collect();
    let (lease, commits) = plot.rng.pick(&commits)?.clone();
    Some((grants[&lease], commits))
}

const STRANGER: u32 = 950;

/// While a member holds a lease, and commits within it later, another gets the same.
pub fn leased_twice(plot: &mut Plot) -> bool {
    let Some((grant, commits)) = pick_commit(plot) else {
        return false;
    };
    let last = commits[commits.len() - 1];
    if last.asked <= plot.entries[grant.index].at + 1 {
        return false;
    }
    plot.insert_after(
        grant.index,
        Event::LeaseGranted {
            lease: LeaseRef {
                lease: grant.lease.lease + 1,
                ..grant.lease
            },
            member: STRANGER,
            lane: grant.lane,
            start: last.ordinal - 1,
            end: Some(last.ordinal),
        },
    );
    true
}

/// One lease is given to two members.
pub fn one_lease_for_two(plot: &mut Plot) -> bool {
    let grants: Vec<Granted> = grants(plot).into_values().collect();
    let Some(grant) = plot.rng.pick(&grants).copied() else {
        return false;
    };
    assert_ne!(grant.member, STRANGER);
    plot.insert_after(
        grant.index,
        Event::LeaseGranted {
            lease: grant.lease,
            member: STRANGER,
            lane: grant.lane,
            start: grant.start,
            end: grant.end,
        },
    );
    true
}

/// What was committed is leased and delivered again.
pub fn delivered_after_commit(plot: &mut Plot) -> bool {
    let grants = grants(plot);
    let commits = commits(plot);
    let candidates: Vec<_> = plot
        .deliveries()
        .into_iter()
        .filter(|d| {
            let Event::Read {
                lease: Some(lease), ..
            } = plot.entries[d.index].event
            else {
                return false;
            };
            let committed = commits.get(&lease).and_then(|c| c.last());
            committed.is_some_and(|c| (grants[&lease].start..c.ordinal).contains(&d.ordinal))
        })
        .collect();
    let Some(d) = plot.rng.pick(&candidates).copied() else {
        return false;
    };
    let Reader::Group(group) = d.reader else {
        return false;
    };
    let lease = LeaseRef {
        group,
        lease: u64::MAX,
    };
    plot.append(Event::LeaseGranted {
        lease,
        member: STRANGER,
        lane: d.lane,
        start: d.ordinal,
        end: Some(d.ordinal + 1),
    });
    plot.append(Event::Read {
        consumer: STRANGER,
        lease: Some(lease),
        lane: d.lane,
        ordinal: d.ordinal,
        record: Some(d.record),
        key: None,
        head: None,
    });
    true
}

/// A delivery happens under a lease that does not cover it.
pub fn outside_lease(plot: &mut Plot) -> bool {
    let grants = grants(plot);
    let candidates: Vec<(usize, LeaseRef)> = plot
        .deliveries()
        .into_iter()
        .filter_map(|d| {
            let other = grants.values().find(|g| {
                Reader::Group(g.lease.group) == d.reader
                    && g.lane == d.lane
                    && g.index < d.index
                    && (d.ordinal < g.start || g.end.is_some_and(|end| d.ordinal >= end))
            })?;
            Some((d.index, other.lease))
        })
        .collect();
    let Some(&(index, other)) = plot.rng.pick(&candidates) else {
        return false;
    };
    if let Event::Read { lease, .. } = &mut plot.entries[index].event {
        *lease = Some(other);
    }
    true
}

/// The end of a lane is never leased to a group, which goes on asking.
pub fn never_leased(plot: &mut Plot) -> bool {
    let all = grants(plot);
    let heads = plot.heads();
    let last_reads = plot.kept_deliveries();
    let Some(target) = plot.rng.pick(&last_reads).copied() else {
        return false;
    };
    let Reader::Group(group) = target.reader else {
        return false;
    };
    let lane = target.lane;
    // All leases that reach into the end, and those that reach into these.
    let mut from = target.ordinal;
    loop {
        let lower = all.values().filter(|g| {
            g.lease.group == group
                && g.lane == lane
                && g.start < from
                && g.end.is_none_or(|end| end > from)
        });
        match lower.map(|g| g.start).min() {
            Some(start) => from = start,
            None => break,
        }
    }
    if heads[&lane] <= from {
        return false;
    }
    let gone = |lease: &LeaseRef| {
        all.get(lease).is_some_and(|g| {
            g.lease.group == group && g.lane == lane && g.end.is_none_or(|end| end > from)
        })
    };
    plot.entries.retain(|entry| match &entry.event {
        Event::Read { lease: Some(l), .. }
        | Event::LeaseGranted { lease: l, .. }
        | Event::LeaseEnded { lease: l }
        | Event::Committed { lease: l, .. } => !gone(l),
        Event::CommitObserved {
            group: g, lane: l, ..
        } => (*g, *l) != (group, lane),
        Event::Drained {
            reader, lane: l, ..
        } => (*reader, *l) != (target.reader, lane),
        _ => true,
    });
    true
}

/// A commit is followed by a lower one of the same lease.
pub fn commit_lowered(plot: &mut Plot) -> bool {
    let Some((grant, commits)) = pick_commit(plot) else {
        return false;
    };
    let last = commits[commits.len() - 1];
    let asked = plot.entries[last.index].at + 1;
    plot.insert_after(
        last.index,
        Event::Committed {
            lease: grant.lease,
            ordinal: last.ordinal - 1,
            asked,
        },
    );
    true
}

/// What was committed is leased again.
pub fn committed_leased_again(plot: &mut Plot) -> bool {
    let Some((grant, commits)) = pick_commit(plot) else {
        return false;
    };
    let last = commits[commits.len() - 1];
    plot.append(Event::LeaseGranted {
        lease: LeaseRef {
            lease: u64::MAX,
            ..grant.lease
        },
        member: STRANGER,
        lane: grant.lane,
        start: last.ordinal - 1,
        end: None,
    });
    true
}

/// The broker states a lower commit than it had confirmed.
pub fn commit_forgotten(plot: &mut Plot) -> bool {
    let grants = grants(plot);
    let mut commits: Vec<_> = commits(plot).into_iter().collect();
    // A group's commit of a lane is known for certain only from its start on.
    commits.retain(|(lease, _)| grants[lease].start == 0);
    let Some((lease, commits)) = plot.rng.pick(&commits).cloned() else {
        return false;
    };
    let grant = grants[&lease];
    let asked = plot.end();
    plot.append(Event::CommitObserved {
        group: grant.lease.group,
        lane: grant.lane,
        ordinal: commits[0].ordinal - 1,
        asked,
    });
    true
}
