//! The figures in the documents against the results that they come from: nobody edits a plot or a
//! generated section by hand, and nobody forgets to make them anew. The other rules of the house are in `xtask`.

use std::path::Path;
use std::process::Command;

#[test]
fn plots_and_sections_are_what_the_results_give() {
    let output = Command::new(env!("CARGO_BIN_EXE_kera-bench"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["report", "docs/benchmarks", "--document"])
        .args(["docs/benchmarks.md", "--check"])
        .output()
        .expect("kera-bench can be run");
    assert!(
        output.status.success(),
        "`make bench-document` makes them anew: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
