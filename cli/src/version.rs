//! What `kera --version` says of this build.

use std::sync::LazyLock;

// `scripts/dist.sh` sets it: what is built otherwise may have changes that no commit holds.
static VERSION: LazyLock<String> =
    LazyLock::new(|| of_build(option_env!("KERA_COMMIT"), cfg!(feature = "rdma")));

fn of_build(commit: Option<&str>, has_rdma: bool) -> String {
    let from = match commit {
        Some(commit) => format!("commit {commit}"),
        None => "development build".to_owned(),
    };
    let features = if has_rdma { "rdma" } else { "none" };
    format!(
        "{} ({from}, features: {features})",
        env!("CARGO_PKG_VERSION")
    )
}

/// The version, the commit that the build is of, and the features it has.
pub(crate) fn version() -> &'static str {
    &VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_and_features_are_told() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            of_build(Some("0123456789"), true),
            format!("{version} (commit 0123456789, features: rdma)")
        );
        assert_eq!(
            of_build(None, false),
            format!("{version} (development build, features: none)")
        );
    }
}
