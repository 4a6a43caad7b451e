//! `/api/v1` at `http.listen`: what people look at, as JSON. docs/api.md has every field.
//!
//! It changes something only where `api.acts` says so. It is for users with a password, or for this machine alone where nobody is asked who they are. Clients of one user and address
//! that ask for the same thing within the same second get the same answer, so that many who look cost little more than one.

mod act_settings;
mod acts;
mod answer;
mod bounds;
mod broker_detail;
mod console;
mod decode;
mod event_streams;
mod events;
mod group_detail;
mod groups;
mod health;
mod live;
mod observe;
mod pace;
mod rates;
mod records;
mod resource;
mod routes;
mod snapshot;
mod stream_detail;
mod told;
mod views;

use axum::Router;
use axum::routing::get;

pub(crate) use answer::{Api, ServedApi, is_of_no_other_site, refusal};
pub(crate) use observe::{observe, peek};
pub(crate) use pace::Paced;
pub use routes::{Method, Route};

/// The paths of the API and of the console.
pub(crate) fn router(served: ServedApi) -> Router {
    let pages = console::paths().fold(Router::new(), |router, path| {
        router.route(path, get(console::file))
    });
    pages
        .route(routes::LIVE, get(live::live))
        .route("/api/v1/{*path}", get(answer::answer).post(acts::act))
        .with_state(served)
}

/// Each path of these.
pub(crate) fn routes() -> impl Iterator<Item = Route> {
    let page = |path: &str| Route {
        method: Method::Get,
        path: path.to_owned(),
    };
    console::paths().map(page).chain(routes::all())
}

#[cfg(test)]
#[path = "api_tests.rs"]
mod tests;
