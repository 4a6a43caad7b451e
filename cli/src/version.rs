//! What `kera --version` says of this build.

use std::sync::LazyLock;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    // `scripts/dist.sh` sets it: what is built otherwise may have changes that no commit holds.
    let from = match option_env!("KERA_COMMIT") {
        Some(commit) => format!("commit {commit}"),
        None => "development build".to_owned(),
    };
    let features = if cfg!(feature = "rdma") {
        "rdma"
    } else {
        "none"
    };
    format!(
        "{} ({from}, features: {features})",
        env!("CARGO_PKG_VERSION")
    )
});

/// The version, the commit that the build is of, and the features it has.
pub(crate) fn version() -> &'static str {
    &VERSION
}
