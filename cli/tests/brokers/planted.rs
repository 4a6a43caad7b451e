//! Reads from copies with one rule broken at a time: the tests of [`copies`](super::copies) notice each.

use kera_broker::fault_rules::Rule;

use kera_testkit::planted::noticed;

#[test]
fn a_copy_served_by_who_is_not_listed() {
    noticed(
        Rule::UnlistedCopyServed.name(),
        "copies::a_copy_that_is_not_listed_is_not_served",
        "what is not listed is served",
    );
}

#[test]
fn a_copy_served_beyond_its_groups_recorded_end() {
    noticed(
        Rule::CopyServedBeyondEnd.name(),
        "copies::a_copy_longer_than_its_record_is_served_up_to_the_record",
        "more than is recorded",
    );
}

#[test]
fn an_open_group_served_from_a_copy() {
    noticed(
        Rule::OpenCopyServed.name(),
        "copies::a_copy_is_read_no_further_than_its_group_is_recorded_to_reach",
        "no open one",
    );
}

#[test]
fn a_damaged_batch_served_without_a_look_at_its_checksum() {
    noticed(
        Rule::CopyNotChecked.name(),
        "copies::damage_is_told_and_not_served",
        "a damaged batch is served",
    );
}

#[test]
fn a_reader_sent_past_damage() {
    noticed(
        Rule::DamageSkipped.name(),
        "copies::a_copy_that_is_spoiled_is_left_for_the_owner",
        "all records, each once",
    );
}
