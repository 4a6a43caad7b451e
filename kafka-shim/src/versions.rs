//! ApiVersions: the request a client sends before it knows anything.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::api_versions_response::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use kafka_protocol::messages::{ApiKey, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;
use kera_metadata::Feature;

use crate::apis::{self, APIS, Api};
use crate::errors;
use crate::wire::init_producer_id::TWO_PHASE_FROM;

/// The first version that tells features.
const FEATURES_FROM: i16 = 3;
/// Kafka's features: their names, the highest level of each, and what a cluster needs for it.
const KNOWN: [(&str, i16, Feature); 3] = [
    ("group.version", 1, Feature::ConsumerProtocol),
    ("transaction.version", 2, Feature::RaisingEnds),
    ("share.version", 1, Feature::ShareGroups),
];
/// Number of the API.
pub(crate) const KEY: i16 = 18;

/// The newest version of an API that a cluster of this version serves. A client that heard of a newer one elsewhere, from a
/// broker that knew of the cluster's version first, is served in it all the same, but for what is new in it.
fn newest(api: &Api, cluster_version: u32) -> i16 {
    let is_known = Feature::TwoPhaseCommit.since() <= cluster_version;
    match api.key == ApiKey::InitProducerId as i16 && !is_known {
        true => TWO_PHASE_FROM - 1,
        false => api.max,
    }
}

/// The answer. Where the client's version is not known it is told the ranges in the oldest form,
/// which every client reads. What the cluster's version has is told as final, and a higher version of it as news.
pub(crate) fn answer(version: i16, cluster_version: u32) -> (ApiVersionsResponse, i16) {
    let (code, version) = if apis::serves(KEY, version) {
        (errors::NONE, version)
    } else {
        (ResponseError::UnsupportedVersion.code(), 0)
    };
    let keys = APIS.iter().map(|api| {
        ApiVersion::default()
            .with_api_key(api.key)
            .with_min_version(api.min)
            .with_max_version(newest(api, cluster_version))
    });
    let mut response = ApiVersionsResponse::default()
        .with_error_code(code)
        .with_api_keys(keys.collect());
    if version >= FEATURES_FROM {
        let name = StrBytes::from_static_str;
        let supported = KNOWN.iter().map(|(feature, level, _)| {
            SupportedFeatureKey::default()
                .with_name(name(feature))
                .with_min_version(1)
                .with_max_version(*level)
        });
        response.supported_features = supported.collect();
        let here = KNOWN.iter();
        let here = here.filter(|(_, _, needs)| needs.since() <= cluster_version);
        let here = here.map(|(feature, level, _)| {
            FinalizedFeatureKey::default()
                .with_name(name(feature))
                .with_min_version_level(*level)
                .with_max_version_level(*level)
        });
        response.finalized_features = here.collect();
        if !response.finalized_features.is_empty() {
            response.finalized_features_epoch = cluster_version.into();
        }
    }
    (response, version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_phase_commit_is_told_once_the_cluster_has_its_version() {
        for (cluster_version, newest) in [(0, 5), (4, 5), (5, 6), (6, 6)] {
            let (told, _) = answer(3, cluster_version);
            let of = |key: ApiKey| {
                let mut all = told.api_keys.iter();
                all.find(|api| api.api_key == key as i16)
                    .map(|api| api.max_version)
            };
            assert_eq!(of(ApiKey::InitProducerId), Some(newest));
            assert_eq!(of(ApiKey::EndTxn), Some(5), "no other API");
        }
    }

    #[test]
    fn features_are_told_once_the_cluster_has_their_version() {
        for (cluster_version, count) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3)] {
            let (told, _) = answer(3, cluster_version);
            assert_eq!(told.supported_features.len(), 3);
            assert_eq!(told.finalized_features.len(), count);
            // Clients look again where it has grown.
            let epoch = if count == 0 {
                -1
            } else {
                cluster_version.into()
            };
            assert_eq!(told.finalized_features_epoch, epoch);
            assert!(answer(2, cluster_version).0.finalized_features.is_empty());
        }
    }
}
