//! Who must come before whom.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::versions::Versions;
use super::{Operation, Transaction};

/// Why one transaction must come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Edge {
    WriteWrite,
    WriteRead,
    ReadWrite,
}

/// Circles of one kind that are told; more say nothing new.
const MOST_CIRCLES: usize = 20;

#[derive(Default)]
pub(super) struct Graph {
    edges: BTreeMap<usize, BTreeSet<(usize, Edge)>>,
}

impl Graph {
    pub(super) fn of(history: &[Transaction], versions: &Versions) -> Self {
        let mut graph = Self::default();
        for (list, order) in versions.orders() {
            for pair in order.windows(2) {
                let from = versions.writer(list, pair[0]);
                graph.add(from, Edge::WriteWrite, versions.writer(list, pair[1]));
            }
        }
        for (number, transaction) in versions.committed(history) {
            for operation in &transaction.operations {
                let Operation::Read { list, values } = operation else {
                    continue;
                };
                let last = values.last();
                let last = last.and_then(|value| versions.writer(*list, *value));
                graph.add(last, Edge::WriteRead, Some(number));
                match versions.after(*list, values.len()) {
                    Some(value) => {
                        let next = versions.writer(*list, value);
                        graph.add(Some(number), Edge::ReadWrite, next);
                    }
                    // What nobody has read came later than all that somebody has.
                    None if versions.is_longest(*list, values) => {
                        for unread in versions.unread(*list) {
                            graph.add(Some(number), Edge::ReadWrite, Some(unread));
                        }
                    }
                    None => {}
                }
            }
        }
        graph
    }

    fn add(&mut self, from: Option<usize>, edge: Edge, to: Option<usize>) {
        if let (Some(from), Some(to)) = (from, to)
            && from != to
        {
            self.edges.entry(from).or_default().insert((to, edge));
        }
    }

    /// Circles with an edge of this kind, which are closed over edges of `back`. Each is as short as one through that edge
    /// can be, and told once. Only edges `among` are looked at.
    pub(super) fn circles(&self, among: &[Edge], with: Edge, back: &[Edge]) -> Vec<Vec<usize>> {
        let mut found = BTreeSet::new();
        if !among.contains(&with) {
            return Vec::new();
        }
        for (from, edges) in &self.edges {
            for (to, edge) in edges {
                if *edge == with
                    && found.len() < MOST_CIRCLES
                    && let Some(path) = self.path(*to, *from, back)
                {
                    found.insert(turned(path));
                }
            }
        }
        found.into_iter().collect()
    }

    /// The shortest way, with both ends.
    fn path(&self, from: usize, to: usize, over: &[Edge]) -> Option<Vec<usize>> {
        let mut before: BTreeMap<usize, usize> = BTreeMap::new();
        let mut next = VecDeque::from([from]);
        while let Some(at) = next.pop_front() {
            if at == to {
                let mut path = vec![to];
                let mut at = to;
                while at != from {
                    at = before[&at];
                    path.push(at);
                }
                path.reverse();
                return Some(path);
            }
            for (other, edge) in self.edges.get(&at).into_iter().flatten() {
                if over.contains(edge) && *other != from && !before.contains_key(other) {
                    before.insert(*other, at);
                    next.push_back(*other);
                }
            }
        }
        None
    }
}

/// The same circle, from its lowest number on.
fn turned(mut circle: Vec<usize>) -> Vec<usize> {
    let lowest = circle.iter().enumerate().min_by_key(|(_, number)| **number);
    let at = lowest.map_or(0, |(at, _)| at);
    circle.rotate_left(at);
    circle
}
