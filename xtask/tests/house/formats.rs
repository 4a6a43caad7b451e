//! What is stored and sent stays readable: `xtask/formats.toml` lists each version with the tests that read its forms,
//! `xtask/fields.txt` each field of a message with its number. What the code has must be there; `make regenerate` adds
//! new fields, and never changes an old one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kera_xtask::{Source, check, files, root};
use syn::visit::Visit;
use syn::{Expr, Item};

const TABLE: &str = "xtask/formats.toml";
const FIELDS: &str = "xtask/fields.txt";
/// What is behind these is stored and sent by brokers and their clients.
const CRATES: [&str; 9] = [
    "protocol/",
    "records/",
    "metadata/",
    "log-segments/",
    "streamlet/",
    "coordinator/",
    "replication/",
    "rpc/",
    "broker/src/store_dir.rs",
];
/// What looks like a version of ours in the code above, and is none.
const OTHERS: [&str; 9] = [
    "log-segments/src/io/direct/mod.rs EXT4_MAGIC",
    "log-segments/src/io/fault/disk.rs EXT4_MAGIC",
    "protocol/src/batch/codec.rs LZ4_MAGIC",
    "log-segments/src/io/volatile.rs TMPFS_MAGIC",
    "log-segments/src/io/volatile.rs RAMFS_MAGIC",
    "log-segments/src/scan.rs MAGIC",
    "metadata/src/check.rs MAX_VERSION",
    "protocol/src/batch/codec.rs XERIAL_MAGIC_BYTES",
    "protocol/src/batch/codec.rs ZSTD_MAGIC",
];

/// The constants of a file that are named as versions and marks are, with their values as written.
fn constants(file: &Source) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (_, line) in file.lines() {
        let Some((_, rest)) = line.split_once("const ") else {
            continue;
        };
        let Some((name, rest)) = rest.split_once(": ") else {
            continue;
        };
        let words: Vec<&str> = name.split('_').collect();
        let is_version = ["VERSION", "FORMAT", "MAGIC"]
            .iter()
            .any(|word| words.contains(word));
        if let (true, Some((_, value))) = (is_version, rest.split_once(" = ")) {
            let value = value.trim_end().trim_end_matches(';').to_owned();
            found.insert(format!("{} {name}", file.path), value);
        }
    }
    found
}

fn table() -> toml::Table {
    let text = fs::read_to_string(root().join(TABLE)).expect("the table of formats");
    text.parse().expect("TOML")
}

/// What is wrong with the table, given what the code has.
fn complaints(
    table: &toml::Table,
    code: &BTreeMap<String, String>,
    is_test: impl Fn(&str, &str) -> bool,
) -> Vec<String> {
    let mut broken = Vec::new();
    let mut listed = BTreeMap::new();
    for format in table["format"].as_array().expect("a list") {
        let text = |key: &str| format[key].as_str().expect("text");
        let (name, constant, value) = (text("name"), text("constant"), text("value"));
        listed.insert(constant.to_owned(), value.to_owned());
        let reads = format["reads"].as_table().expect("a table");
        let newest: i64 = value.parse().expect("a version is a number");
        let since = format["since"].as_integer().expect("a version");
        // The newest may lack one here: its own tests read it.
        for version in since..newest {
            if !reads.contains_key(&version.to_string()) {
                broken.push(format!("{name}: no test reads version {version}"));
            }
        }
        let mut tests = BTreeSet::new();
        for (version, test) in reads {
            let test = test.as_str().expect("a file and a test");
            let (path, function) = test.split_once(' ').expect("a file and a test");
            if !is_test(path, function) {
                broken.push(format!("{name}: {path} has no test {function}"));
            }
            if !tests.insert(test) {
                broken.push(format!("{name}: version {version} needs a test of its own"));
            }
        }
    }
    for (constant, value) in table["marks"].as_table().expect("a table") {
        listed.insert(constant.clone(), value.as_str().expect("text").to_owned());
    }
    for (constant, value) in code {
        match listed.get(constant) {
            None => broken.push(format!("{constant} is not in it")),
            Some(known) if known != value => broken.push(format!(
                "{constant} is {value}, it says {known}: a test that reads what was stored before goes with the change"
            )),
            Some(_) => {}
        }
    }
    for constant in listed
        .keys()
        .filter(|constant| !code.contains_key(*constant))
    {
        broken.push(format!("{constant} is not in the code"));
    }
    broken
}

fn versions_in_code() -> BTreeMap<String, String> {
    let all = files(&[".rs"]);
    let concerned = all.iter().filter(|file| {
        CRATES.iter().any(|one| file.path.starts_with(one)) && !file.path.contains("/tests/")
    });
    let mut found: BTreeMap<_, _> = concerned.flat_map(constants).collect();
    for other in OTHERS {
        assert!(found.remove(other).is_some(), "{other} is gone");
    }
    found
}

#[test]
fn every_format_has_tests_that_read_what_was_stored_before() {
    let is_test = |path: &str, function: &str| {
        let text = fs::read_to_string(root().join(path)).unwrap_or_default();
        text.contains(&format!("fn {function}("))
    };
    check(
        &format!("{TABLE} lists each format as it is, with a test for each version that is read"),
        complaints(&table(), &versions_in_code(), is_test),
    );
}

#[test]
fn a_format_that_changes_without_a_test_is_seen() {
    let (table, code) = (table(), versions_in_code());
    let seen =
        |table: &toml::Table, code: &BTreeMap<String, String>| complaints(table, code, |_, _| true);
    assert_eq!(seen(&table, &code), [""; 0]);
    let seals = "replication/src/backup/seals.rs VERSION";
    let raised = |name: &str, value: &str| {
        let mut code = code.clone();
        code.insert(name.to_owned(), value.to_owned());
        code
    };
    // Raised in the code alone, in both without a test, and a new one.
    assert_eq!(seen(&table, &raised(seals, "3")).len(), 1);
    let mut both = table.clone();
    for format in both["format"].as_array_mut().expect("a list") {
        if format["constant"].as_str() == Some(seals) {
            format["value"] = "3".into();
        }
    }
    let complaints_of_both = seen(&both, &raised(seals, "3"));
    assert_eq!(
        complaints_of_both,
        ["seals of replica stores: no test reads version 2"]
    );
    assert_eq!(
        seen(&table, &raised("records/src/new.rs NEW_FORMAT", "1")).len(),
        1
    );
    assert_eq!(
        seen(&table, &raised("protocol/src/frame.rs MAGIC", "*b\"KERB\"")).len(),
        1
    );
    // A test that is not there.
    assert!(!complaints(&table, &code, |_, _| false).is_empty());
}

/// The fields of messages, under where they are, the message and the number.
struct Messages {
    place: String,
    found: BTreeMap<String, String>,
}

impl Messages {
    fn field(&mut self, message: &str, name: &str, attributes: &[syn::Attribute], of: String) {
        for attribute in attributes.iter().filter(|one| one.path().is_ident("prost")) {
            let mut words = Vec::new();
            let mut number = None;
            let parsed = attribute.parse_nested_meta(|meta| {
                let key = meta
                    .path
                    .get_ident()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let value = match meta.value() {
                    Ok(value) => match value.parse::<Expr>()? {
                        Expr::Lit(syn::ExprLit {
                            lit: syn::Lit::Str(text),
                            ..
                        }) => Some(text.value()),
                        _ => None,
                    },
                    Err(_) => None,
                };
                match (key.as_str(), value) {
                    ("tag", Some(value)) => number = Some(value),
                    ("tags", _) => {}
                    (_, Some(value)) => words.push(format!("{key} {value}")),
                    (_, None) => words.push(key),
                }
                Ok(())
            });
            // A choice has the numbers of its members.
            if let (Ok(()), Some(number)) = (parsed, number) {
                let kind = words.join(" ");
                let of = if kind.starts_with("message") {
                    format!(" {of}")
                } else {
                    String::new()
                };
                let key = format!("{} {message} {number}", self.place);
                let field = format!("{name} {kind}{of}");
                let other = self.found.insert(key.clone(), field);
                assert!(other.is_none(), "{key} is there twice");
            }
        }
    }
}

impl<'a> Visit<'a> for Messages {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        let above = self.place.clone();
        self.place = format!("{above}/{}", module.ident);
        syn::visit::visit_item_mod(self, module);
        self.place = above;
    }

    fn visit_item(&mut self, item: &'a Item) {
        match item {
            Item::Struct(one) => {
                for field in &one.fields {
                    let name = field
                        .ident
                        .as_ref()
                        .map(ToString::to_string)
                        .unwrap_or_default();
                    self.field(
                        &one.ident.to_string(),
                        &name,
                        &field.attrs,
                        kind_of(&field.ty),
                    );
                }
            }
            Item::Enum(one) => {
                for variant in &one.variants {
                    let of = variant.fields.iter().next().map(|field| kind_of(&field.ty));
                    let of = of.unwrap_or_default();
                    self.field(
                        &one.ident.to_string(),
                        &variant.ident.to_string(),
                        &variant.attrs,
                        of,
                    );
                }
            }
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }
}

/// The last name in a type: of `Option<super::Cursor>` it is `Cursor`.
fn kind_of(ty: &syn::Type) -> String {
    struct Last(String);
    impl Visit<'_> for Last {
        fn visit_path_segment(&mut self, segment: &syn::PathSegment) {
            self.0 = segment.ident.to_string();
            syn::visit::visit_path_segment(self, segment);
        }
    }
    let mut last = Last(String::new());
    last.visit_type(ty);
    last.0
}

fn fields_in_code() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for file in files(&[".rs"]) {
        let top = file.path.split('/').next().unwrap_or_default();
        if !CRATES.contains(&format!("{top}/").as_str()) || !file.text.contains("prost(") {
            continue;
        }
        let place = file.path.replace("/src/", "/").replace("/generated/", "/");
        let place = place.trim_end_matches(".rs").to_owned();
        let mut messages = Messages {
            place,
            found: BTreeMap::new(),
        };
        let parsed =
            syn::parse_file(&file.text).unwrap_or_else(|error| panic!("{}: {error}", file.path));
        messages.visit_file(&parsed);
        found.extend(messages.found);
    }
    assert!(found.len() > 300, "only {} fields", found.len());
    found
}

/// `place Message number: name kind`, each on a line.
fn listed(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(": "))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Fields that have another meaning than the one listed under their number, or that are gone.
fn changed(listed: &BTreeMap<String, String>, code: &BTreeMap<String, String>) -> Vec<String> {
    let differs = |(key, known): (&String, &String)| match code.get(key) {
        _ if known.starts_with("gone ") => code
            .get(key)
            .map(|new| format!("{key} was {known}, it is {new}")),
        Some(new) if new == known => None,
        Some(new) => Some(format!(
            "{key} was {known}, it is {new}: give the new one a number of its own"
        )),
        None => Some(format!(
            "{key} was {known}: say `gone {known}`, so that nobody uses the number again"
        )),
    };
    listed.iter().filter_map(differs).collect()
}

#[test]
fn fields_of_messages_keep_their_numbers() {
    let path = root().join(FIELDS);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let (mut list, code) = (listed(&text), fields_in_code());
    let mut broken = changed(&list, &code);
    let new: Vec<_> = code
        .iter()
        .filter(|(key, _)| !list.contains_key(*key))
        .collect();
    if std::env::var_os("KERA_REGENERATE").is_some() {
        let head = "# Every field of a message that is stored or sent: place, message, number: name, kind. A number is used once:\n\
                    # a field that goes stays here as `gone`. `make regenerate` adds new ones.\n";
        let new: Vec<_> = new
            .into_iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        list.extend(new);
        let lines = list.iter().map(|(key, value)| format!("{key}: {value}\n"));
        fs::write(&path, head.to_owned() + &lines.collect::<String>()).expect("it is written");
    } else {
        broken.extend(
            new.iter()
                .map(|(key, value)| format!("{key}: {value} is new: make regenerate")),
        );
    }
    check(
        &format!("{FIELDS} lists each field under the number that it keeps"),
        broken,
    );
}

#[test]
fn a_number_with_another_meaning_is_seen() {
    let code = fields_in_code();
    let key = "protocol/kera.v1 AppendRequest 3";
    assert_eq!(code[key], "lane uint32");
    assert!(changed(&code, &code).is_empty());
    let mut other = code.clone();
    other.insert(key.to_owned(), "lane uint64".to_owned());
    assert_eq!(changed(&code, &other).len(), 1);
    other.remove(key);
    assert_eq!(changed(&code, &other).len(), 1);
    let mut gone = code.clone();
    gone.insert(key.to_owned(), "gone lane uint32".to_owned());
    assert!(changed(&gone, &other).is_empty());
    assert_eq!(changed(&gone, &code).len(), 1);
}
