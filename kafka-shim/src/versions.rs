//! ApiVersions: the request a client sends before it knows anything.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ApiVersionsResponse;
use kafka_protocol::messages::api_versions_response::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use kafka_protocol::protocol::StrBytes;

use crate::apis::{self, APIS};
use crate::errors;

/// The first version that tells features.
const FEATURES_FROM: i16 = 3;
/// The feature of groups of the consumer protocol.
const GROUP_VERSION: &str = "group.version";
/// Number of the API.
pub(crate) const KEY: i16 = 18;

/// The answer. Where the client's version is not known it is told the ranges in the oldest form,
/// which every client reads. `has_consumers`: there may be groups of the consumer protocol.
pub(crate) fn answer(version: i16, has_consumers: bool) -> (ApiVersionsResponse, i16) {
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
    let mut response = ApiVersionsResponse::default()
        .with_error_code(code)
        .with_api_keys(keys.collect());
    if version >= FEATURES_FROM {
        let groups = || StrBytes::from_static_str(GROUP_VERSION);
        response.supported_features = vec![
            SupportedFeatureKey::default()
                .with_name(groups())
                .with_min_version(1)
                .with_max_version(1),
        ];
        if has_consumers {
            response.finalized_features_epoch = 1;
            response.finalized_features = vec![
                FinalizedFeatureKey::default()
                    .with_name(groups())
                    .with_min_version_level(1)
                    .with_max_version_level(1),
            ];
        }
    }
    (response, version)
}
