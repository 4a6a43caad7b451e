//! The brokers of a cluster, for the commands that ask or show them.

mod answering;
mod asked;
mod bars;
mod compared;
mod list;
mod problem;
mod view;

pub(crate) use answering::{answering, how_to_start};
pub(crate) use asked::{Asked, may_pass};
pub(crate) use bars::{progress, progress_bytes, working};
pub(crate) use compared::{ComparedView, print_compared};
pub(crate) use list::{ask_each, brokers, print_brokers};
pub(crate) use problem::Problem;
pub(crate) use view::BrokerView;
