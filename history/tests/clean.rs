//! The checker has nothing to object to in histories of a broker that keeps its promises.

mod model;

use kera_history::{Event, Expectations, History, check};
use proptest::prelude::*;

fn expectations() -> Expectations {
    Expectations {
        complete: true,
        ..Expectations::default()
    }
}

#[test]
fn the_model_does_what_it_is_for() {
    // Otherwise the property below would hold of empty histories.
    let mut kinds = std::collections::BTreeMap::new();
    let mut redeliveries = 0;
    let mut unknown = 0;
    for seed in 0..20 {
        let model = model::clean(seed, 2_000);
        for entry in &model.entries {
            let text = serde_json::to_string(&entry.event).unwrap();
            let kind: String = text
                .chars()
                .filter(|c| c.is_alphabetic() || *c == '_')
                .take(8)
                .collect();
            *kinds.entry(kind).or_insert(0_u32) += 1;
        }
        let report = check(&History::from_entries(model.entries), &expectations()).unwrap();
        redeliveries += report.counts.redeliveries;
        unknown += report.counts.unknown;
        assert!(report.counts.sent > 200, "{report}");
        assert!(report.counts.acknowledged > 100, "{report}");
        assert_eq!(report.counts.unresolved, 0, "{report}");
    }
    assert!(
        redeliveries > 20 && unknown > 20,
        "{redeliveries} {unknown}"
    );
    assert!(kinds.len() >= 17, "{kinds:?}");
    assert!(kinds.values().all(|count| *count >= 10), "{kinds:?}");
}

#[test]
fn a_file_is_judged_as_memory_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let mut entries = model::clean(7, 500).entries;
    // Something to find.
    entries.retain(|entry| !matches!(entry.event, Event::Read { ordinal: 3, .. }));
    let memory = History::from_entries(entries);
    memory.save(&path, "seed 7").unwrap();
    let file = History::open(&path).unwrap();
    let report = check(&memory, &expectations()).unwrap();
    assert!(!report.is_clean());
    assert!(!report.evidence[0].is_empty());
    assert_eq!(report, check(&file, &expectations()).unwrap());
    let json = report.to_json().unwrap();
    assert_eq!(report, serde_json::from_str(&json).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn clean_histories_have_no_anomaly(seed: u64, steps in 0usize..3_000) {
        let model = model::clean(seed, steps);
        let report = check(&History::from_entries(model.entries), &expectations()).unwrap();
        prop_assert!(report.is_clean(), "seed {seed}, {steps} steps: {report}");
    }
}
