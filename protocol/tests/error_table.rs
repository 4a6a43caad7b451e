//! The documented table of error codes is the one in the code.

use std::fmt::Write;
use std::path::Path;

use kera_protocol::error::ErrorCode;
use kera_protocol::v1::Placement;

fn table() -> String {
    let mut out = String::from(
        "# Error codes\n\n\
         Every error that a broker sends carries one of these codes: in the header of a data frame's reply, in a\n\
         `GoAway` frame before the broker closes a connection, or as the number in the metadata key `kera-error` of a\n\
         gRPC status. Numbers and names never change their meaning and are never reused. \"Retry\" says whether the same\n\
         request may succeed later without any change; the client crates retry those by themselves, within their deadline.\n\
         \"Appended\" is what the code alone says about the batches of an append: \"no\", none of them is stored; \"open\", they may be\n\
         stored. The field `placement` of a reply may say more. A batch whose fate is open keeps its sequence.\n\n\
         This file is generated from [`protocol/src/error.rs`](../protocol/src/error.rs); a test compares them\n\
         (`KERA_REGENERATE=1 cargo test -p kera-protocol --test error_table` writes it).\n\n\
         | number | name | retry | appended | meaning |\n|---|---|---|---|---|\n",
    );
    for code in ErrorCode::ALL {
        let retry = if code.is_retryable() { "yes" } else { "no" };
        let appended = match (code, code.placement()) {
            (ErrorCode::Ok, _) => "yes",
            (_, Placement::NotPlaced) => "no",
            _ => "open",
        };
        let meaning = code.description().replace('|', "\\|");
        writeln!(
            out,
            "| {} | `{code}` | {retry} | {appended} | {meaning} |",
            *code as u16
        )
        .expect("writing to a string");
    }
    out
}

#[test]
fn the_documented_table_equals_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors.md");
    let expected = table();
    if std::env::var_os("KERA_REGENERATE").is_some() {
        std::fs::write(&path, &expected).expect("write docs/errors.md");
    }
    let documented = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        documented == expected,
        "docs/errors.md differs from protocol/src/error.rs: run `KERA_REGENERATE=1 cargo test -p kera-protocol --test error_table`"
    );
}
