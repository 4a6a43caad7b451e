//! The backup's side: what a store refuses and remembers, the life of its process, and the data
//! connections to it.

mod child;
mod content;
mod full;
mod life;
mod links;
mod rules;
mod stage;
