//! The demo's consumers.
use std::sync::Arc;
use super::check::Processed;
use super::view::Progress;
#[derive(Clone)]
pub(super) struct Crew;
impl Crew {
    pub(super) fn start(_: String, _: &'static str, _: f64, _: Arc<Progress>, _: Arc<Processed>) -> Self { Crew }
    pub(super) async fn hire(&self) {}
    pub(super) async fn dismiss(&self) {}
}
