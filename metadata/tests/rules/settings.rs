//! Broker settings that are changed at run time.

use super::*;

fn put(store: &dyn MetadataStore, record: &SettingsRecord) -> Result<Committed, MetadataError> {
    let compare = Compare::revision(Key::Settings(record.broker), record.revision);
    let write = Write::PutSettings(record.clone());
    store.commit(Transaction::new(vec![compare], vec![write]))
}

#[test]
fn settings_are_replaced_by_whoever_knows_them() {
    on_each_store(|store| {
        assert!(store.settings(None).unwrap().values.is_empty());
        let mut scopes = Vec::new();
        for broker in [None, Some(1), Some(2)] {
            let mut record = store.settings(broker).unwrap();
            let stale = record.clone();
            let value = format!("{broker:?}");
            record.values.insert("a.b".into(), value);
            record.revision = put(&*store, &record).unwrap().revision;
            assert_eq!(store.settings(broker).unwrap(), record);
            assert_conflict(put(&*store, &stale));
            scopes.push(record);
        }
        assert_eq!(store.load().unwrap().settings, scopes);
        let write = Write::PutSettings(scopes[0].clone());
        assert_invalid(
            store.commit(Transaction::new(vec![], vec![write])),
            "revision",
        );
        let mut large = scopes[0].clone();
        let text = "x".repeat(MAX_SETTINGS_BYTES);
        large.values.insert("a.c".into(), text);
        assert_invalid(put(&*store, &large), "bytes");
        let mut none = scopes[1].clone();
        none.values.clear();
        none.revision = put(&*store, &none).unwrap().revision;
        assert_eq!(store.settings(Some(1)).unwrap(), none);
    });
}
