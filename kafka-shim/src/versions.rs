//! ApiVersions: the request a client sends before it knows anything.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ApiVersionsResponse;
use kafka_protocol::messages::api_versions_response::ApiVersion;

use crate::apis::{self, APIS};
use crate::errors;

/// Number of the API.
pub(crate) const KEY: i16 = 18;

/// The answer. Where the client's version is not known it is told the ranges in the oldest form,
/// which every client reads.
pub(crate) fn answer(version: i16) -> (ApiVersionsResponse, i16) {
    let (code, version) = if apis::serves(KEY, version) {
        (errors::NONE, version)
    } else {
        (ResponseError::UnsupportedVersion.code(), 0)
    };
    let keys = APIS.iter().map(|api| {
        ApiVersion::default()
            .with_api_key(api.key)
            .with_min_version(api.min)
            .with_max_version(api.max)
    });
    let response = ApiVersionsResponse::default()
        .with_error_code(code)
        .with_api_keys(keys.collect());
    (response, version)
}
