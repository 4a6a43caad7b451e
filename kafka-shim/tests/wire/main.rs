//! What a broker makes of clients that are odd, broken or hostile, over sockets.

#[path = "../common/mod.rs"]
mod common;
mod connection;
#[path = "../support/dice.rs"]
mod dice;
mod limits;
#[path = "../support/messages.rs"]
mod messages;
mod random;
#[path = "../support/requests.rs"]
mod requests;
#[path = "../support/responses.rs"]
mod responses;

use common::newer_bodies;
