//! Isolation of transactions over lists that only grow, by Adya's phenomena and in the way of Elle.
//!
//! Transactions append values to lists and read lists. Each value is appended once, so a read tells which transactions
//! it saw, and the longest read of a list tells the order of its versions. From both follow who must come before whom:
//!
//! | edge | from | to |
//! |---|---|---|
//! | `ww` | who appended a value | who appended the next one |
//! | `wr` | who appended the last value of a read | who read it |
//! | `rw` | who read a list up to a value | who appended the next one |
//!
//! A cycle says that no order of the transactions explains what was seen. Which edges it has says which level of isolation
//! that breaks. A transaction whose end nobody knows counts as committed once a committed one has read of it.

mod graph;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use graph::{Edge, Graph};
use versions::Versions;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its client was told so.
    Committed,
    /// Likewise.
    Aborted,
    /// Nobody can tell.
    Unknown,
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Appended a value, which nothing else appends to that list.
    Append {
        /// Which list.
        list: u32,
        /// The value.
        value: u64,
    },
    /// Read a list.
    Read {
        /// Which list.
        list: u32,
        /// All of it, in its order.
        values: Vec<u64>,
    },
}

/// A transaction as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// How it ended.
    pub outcome: Outcome,
    /// In the order in which it did them.
    pub operations: Vec<Operation>,
}

/// What must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phenomenon {
    /// G0: transactions wrote over each other in a circle.
    DirtyWrite,
    /// G1a: a committed transaction read of an aborted one.
    AbortedRead,
    /// G1b: one read of another a state that it went on to change.
    IntermediateRead,
    /// G1c: transactions wrote over each other or read each other's writes in a circle.
    CircularFlow,
    /// G-single: the same with one read that missed a write.
    ReadSkew,
    /// G2-item: the same with several reads that missed writes.
    WriteSkew,
    /// Several transactions read one version of a list and appended to it.
    LostUpdate,
    /// A value is in a list twice.
    Duplicate,
    /// A read has a value that nobody appended.
    Phantom,
    /// Two reads of a list differ by more than their lengths.
    Incompatible,
    /// A transaction does not see what it appended itself.
    OwnWriteMissing,
    /// What was committed is not in its list in the end.
    LostAppend,
}

impl Phenomenon {
    /// Adya's name, or Elle's.
    pub fn name(self) -> &'static str {
        match self {
            Self::DirtyWrite => "G0",
            Self::AbortedRead => "G1a",
            Self::IntermediateRead => "G1b",
            Self::CircularFlow => "G1c",
            Self::ReadSkew => "G-single",
            Self::WriteSkew => "G2-item",
            Self::LostUpdate => "lost-update",
            Self::Duplicate => "duplicate-elements",
            Self::Phantom => "phantom",
            Self::Incompatible => "incompatible-order",
            Self::OwnWriteMissing => "internal",
            Self::LostAppend => "lost-append",
        }
    }
}

/// What was found, with the transactions by their numbers in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub phenomenon: Phenomenon,
    /// The transactions, in the order of the circle if it is one.
    pub transactions: Vec<usize>,
    /// The list that shows it, unless it takes several.
    pub list: Option<u32>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.phenomenon.name();
        write!(f, "{name}: transactions {:?}", self.transactions)?;
        match self.list {
            Some(list) => write!(f, ", list {list}"),
            None => Ok(()),
        }
    }
}

/// All that must not happen in a history that is serializable; who promises less passes over what is allowed.
pub fn check(history: &[Transaction]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let versions = Versions::of(history, &mut findings);
    lost_updates(history, &versions, &mut findings);
    cycles(history, &versions, &mut findings);
    sorted(findings)
}

/// As [`check`], of a history that is over: `last` is what is in the lists after all transactions, as one reads them who
/// has time. All that was committed is there.
pub fn check_all(history: &[Transaction], last: &BTreeMap<u32, Vec<u64>>) -> Vec<Finding> {
    let reads = last.iter().map(|(list, values)| Operation::Read {
        list: *list,
        values: values.clone(),
    });
    let reader = Transaction {
        outcome: Outcome::Committed,
        operations: reads.collect(),
    };
    let with_reader = [history, &[reader]].concat();
    let mut findings = check(&with_reader);
    for (number, transaction) in history.iter().enumerate() {
        if transaction.outcome != Outcome::Committed {
            continue;
        }
        for operation in &transaction.operations {
            if let Operation::Append { list, value } = operation
                && !last.get(list).is_some_and(|values| values.contains(value))
            {
                findings.push(Finding {
                    phenomenon: Phenomenon::LostAppend,
                    transactions: vec![number],
                    list: Some(*list),
                });
            }
        }
    }
    sorted(findings)
}

fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by(|a, b| {
        let key = |one: &Finding| (one.phenomenon, one.transactions.clone(), one.list);
        key(a).cmp(&key(b))
    });
    findings.dedup();
    findings
}

/// Committed transactions that read one version of a list and appended to it.
fn lost_updates(history: &[Transaction], versions: &Versions, findings: &mut Vec<Finding>) {
    let mut by_version: BTreeMap<(u32, usize), Vec<usize>> = BTreeMap::new();
    for (number, transaction) in versions.committed(history) {
        let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
        let mut appended: BTreeSet<u32> = BTreeSet::new();
        for operation in &transaction.operations {
            match operation {
                // What it read before it wrote.
                Operation::Read { list, values } if !appended.contains(list) => {
                    seen.insert(*list, values.len());
                }
                Operation::Read { .. } => {}
                Operation::Append { list, .. } => {
                    appended.insert(*list);
                }
            }
        }
        for (list, length) in seen {
            if appended.contains(&list) {
                by_version.entry((list, length)).or_default().push(number);
            }
        }
    }
    for ((list, _), transactions) in by_version {
        if transactions.len() > 1 {
            findings.push(Finding {
                phenomenon: Phenomenon::LostUpdate,
                transactions,
                list: Some(list),
            });
        }
    }
}

fn cycles(history: &[Transaction], versions: &Versions, findings: &mut Vec<Finding>) {
    let graph = Graph::of(history, versions);
    let mut add = |phenomenon, found: Vec<Vec<usize>>| {
        findings.extend(found.into_iter().map(|transactions| Finding {
            phenomenon,
            transactions,
            list: None,
        }));
    };
    let writes = [Edge::WriteWrite];
    let flow = [Edge::WriteWrite, Edge::WriteRead];
    let all = [Edge::WriteWrite, Edge::WriteRead, Edge::ReadWrite];
    add(
        Phenomenon::DirtyWrite,
        graph.circles(&writes, Edge::WriteWrite, &writes),
    );
    add(
        Phenomenon::CircularFlow,
        graph.circles(&flow, Edge::WriteRead, &flow),
    );
    let single = graph.circles(&all, Edge::ReadWrite, &flow);
    let several = match single.is_empty() {
        true => graph.circles(&all, Edge::ReadWrite, &all),
        // The smaller circle says more.
        false => Vec::new(),
    };
    add(Phenomenon::ReadSkew, single);
    add(Phenomenon::WriteSkew, several);
}
