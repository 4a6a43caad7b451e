//! Fetches from copies with one rule broken at a time: the tests of [`near`](super::near) notice each.

use kera_broker::fault_rules::Rule;

use kera_testkit::planted::noticed;

#[test]
fn an_open_group_fetched_from_a_copy() {
    noticed(
        Rule::OpenCopyServed.name(),
        "near::the_broker_that_is_named_serves_closed_groups_and_sends_back_behind_them",
        "more or less than closed groups",
    );
}

#[test]
fn a_high_watermark_below_what_is_fetched() {
    noticed(
        Rule::CopyHeadLow.name(),
        "near::the_broker_that_is_named_serves_closed_groups_and_sends_back_behind_them",
        "high watermark below what is served",
    );
}

#[test]
fn a_high_watermark_above_the_owners() {
    noticed(
        Rule::CopyHeadHigh.name(),
        "near::the_broker_that_is_named_serves_closed_groups_and_sends_back_behind_them",
        "high watermark above the owner's",
    );
}

#[test]
fn a_fetch_by_who_knows_another_epoch() {
    noticed(
        Rule::CopyEpochNotCompared.name(),
        "near::copies_are_for_clients_beside_them_that_know_the_epoch",
        "the client knows another epoch",
    );
}
