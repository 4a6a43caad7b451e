//! The backup's side: what a store refuses and remembers, the life of its process, and the data
//! connections to it.

mod cards;
mod child;
mod content;
mod cut;
mod doubles;
mod full;
mod generations;
mod keeping;
mod life;
mod limits;
mod links;
mod many;
mod owner_files;
mod released;
mod rounds;
mod rules;
mod shares;
mod stage;
mod starts;
mod strangers;
mod unproven;
mod unproven_own;
mod waits;
