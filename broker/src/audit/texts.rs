//! What control calls ask for, in a few words.

use kera_protocol::v1;
use kera_rpc::scram::Mechanism;

use super::TEXT;

/// The settings that a request names, in the protocol's words.
pub fn settings_text(config: &v1::StreamConfig) -> String {
    macro_rules! named {
        ($($field:ident)*; $($choice:ident: $names:ident)*) => {{
            // A new field does not compile until it is here.
            let v1::StreamConfig { $($field,)* $($choice,)* } = config;
            let mut parts: Vec<String> = Vec::new();
            $(parts.extend($field.map(|value| format!("{}={value}", stringify!($field))));)*
            $(parts.extend($choice.map(|number| match v1::$names::try_from(number) {
                Ok(value) => format!("{}={}", stringify!($choice), value.as_str_name()),
                Err(_) => format!("{}={number}", stringify!($choice)),
            }));)*
            parts.join(" ")
        }};
    }
    named! {
        streamlets lanes partitions segment_size segments_per_group replicas min_insync_replicas retention_ms
        retention_bytes group_max_age_ms max_batch_bytes timestamp_before_max_ms timestamp_after_max_ms
        min_compaction_lag_ms max_compaction_lag_ms delete_retention_ms min_dirty_permille dead_letters;
        lane_by: LaneBy ack: AckPolicy timestamp_type: TimestampType validate: BatchCheck cleanup: Cleanup
    }
}

/// What is to be recovered.
pub(crate) fn recovery_text(request: &v1::RecoverStreamRequest) -> String {
    let groups = request.give_up.iter().map(|named| {
        let v1::GroupToGiveUp {
            streamlet,
            lane,
            group,
        } = named;
        format!("streamlet={streamlet} lane={lane} group={group}")
    });
    let groups: Vec<_> = groups.collect();
    match groups.is_empty() {
        true => with_place([("streamlet", request.streamlet)], "accept_loss".to_owned()),
        false => format!("give_up {}", groups.join(", ")),
    }
}

/// What is to be trimmed.
pub(crate) fn trim_text(request: &v1::TrimStreamRequest) -> String {
    use v1::trim_stream_request::To;
    let to = match request.to {
        Some(To::Ordinal(ordinal)) => format!("ordinal={ordinal}"),
        Some(To::TimestampMs(ms)) => format!("timestamp_ms={ms}"),
        Some(To::Everything(_)) => "everything".to_owned(),
        None => String::new(),
    };
    let place = [("streamlet", request.streamlet), ("lane", request.lane)];
    with_place(place, to)
}

/// What a pin is to be.
pub(crate) fn pin_text(request: &v1::CreatePinRequest) -> String {
    let policy = match v1::PinPolicy::try_from(request.policy) {
        Ok(v1::PinPolicy::Wait) => "wait",
        _ => "warn",
    };
    let bounds = [
        ("max_age_ms", request.max_age_ms),
        ("max_bytes", request.max_bytes),
        ("replaces_created_ms", request.replaces_created_ms),
    ];
    let bounds = bounds
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let bounds = bounds.map(|(name, value)| format!(" {name}={value}"));
    format!("pin={} policy={policy}", request.name) + &bounds.collect::<String>()
}

/// To where a group is to be reset.
pub(crate) fn reset_text(request: &v1::ResetGroupRequest) -> String {
    use v1::start_at::At;
    let to = match request.to.and_then(|to| to.at) {
        Some(At::Earliest(_)) => "earliest".to_owned(),
        Some(At::Latest(_)) => "latest".to_owned(),
        Some(At::TimestampMs(ms)) => format!("timestamp_ms={ms}"),
        Some(At::Ordinal(ordinal)) => format!("ordinal={ordinal}"),
        None => String::new(),
    };
    let stream = request.stream.iter().map(|name| format!("stream={name} "));
    let place = [
        ("streamlet", request.streamlet),
        ("lane", request.lane),
        ("partition", request.partition),
    ];
    stream.collect::<String>() + &with_place(place, to)
}

/// For which mechanisms a user gets passwords.
pub(crate) fn mechanisms_text(request: &v1::PutUserRequest) -> String {
    let names = request.passwords.iter().map(|password| {
        let known = Mechanism::of_number(password.mechanism);
        known.map_or("unknown".to_owned(), |known| known.to_string())
    });
    names.collect::<Vec<_>>().join(" ")
}

/// Most bytes of the names in one text about members: below [`TEXT`] with what stands before them.
const NAMES: usize = TEXT - 64;
/// Most texts about one change: more than members that fit in the record of rules need. Who asks for more is refused, or removes
/// names that are no members.
const MOST_TEXTS: usize = 2_048;

/// What a change of a role's members asks for, in as many texts as it takes: each name is in one of them. The first says how
/// many there are.
pub(crate) fn members_texts(request: &v1::AlterRoleRequest) -> Vec<String> {
    let (add, remove) = (&request.add, &request.remove);
    let mut texts = vec![format!("adds={} removes={}", add.len(), remove.len())];
    let named = [("add", add), ("remove", remove)];
    let named = named.into_iter();
    let named = named.flat_map(|(key, names)| names.iter().map(move |name| (key, quoted(name))));
    let mut before = "";
    for (at, (key, name)) in named.enumerate() {
        let length = texts.last().map_or(0, String::len);
        let is_new = length + name.len() >= NAMES;
        if is_new && texts.len() == MOST_TEXTS {
            texts.push(format!("and {} more", add.len() + remove.len() - at));
            return texts;
        }
        match texts.last_mut() {
            Some(text) if !is_new && before == key => text.extend([",", name.as_str()]),
            Some(text) if !is_new => text.extend([" ", key, "=", name.as_str()]),
            _ => texts.push(format!("{key}={name}")),
        }
        before = key;
    }
    texts
}

/// A name that could be taken for several, or for another word, in quotation marks.
fn quoted(name: &str) -> String {
    match name.contains([',', '"', '\\', '=', ' ']) {
        true => format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"")),
        false => name.to_owned(),
    }
}

fn with_place<const N: usize>(place: [(&str, Option<u32>); N], what: String) -> String {
    let place = place.into_iter();
    let named = place.filter_map(|(key, number)| Some(format!("{key}={}", number?)));
    let parts: Vec<_> = named
        .chain([what])
        .filter(|part| !part.is_empty())
        .collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(add: Vec<String>, remove: &[&str]) -> v1::AlterRoleRequest {
        v1::AlterRoleRequest {
            add,
            remove: remove.iter().map(|one| (*one).to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn each_member_that_comes_or_goes_is_named_however_many_they_are() {
        let few = request(vec!["ann".into(), "a,b".into(), "c\"d".into()], &["bob"]);
        let told = r#"adds=3 removes=1 add=ann,"a,b","c\"d" remove=bob"#;
        assert_eq!(members_texts(&few), [told]);
        let none = request(Vec::new(), &[]);
        assert_eq!(members_texts(&none), ["adds=0 removes=0"]);

        let names: Vec<String> = (0..15_000).map(|n| format!("user{n:05}")).collect();
        let texts = members_texts(&request(names.clone(), &["evil"]));
        assert!(texts[0].starts_with("adds=15000 removes=1 add=user00000,"));
        assert!(texts.iter().all(|text| text.chars().count() <= TEXT));
        let all: Vec<&str> = texts
            .iter()
            .flat_map(|text| text.split([' ', ',', '=']))
            .collect();
        let told = all.iter().filter(|word| word.starts_with("user"));
        assert!(told.eq(names.iter()), "each once, in order");
        assert!(texts.last().unwrap().ends_with("remove=evil"));

        // Names of 255 bytes, each of which is quoted.
        let long = request(vec!["\"".repeat(255); 100], &[]);
        let texts = members_texts(&long);
        assert!(texts.iter().all(|text| text.chars().count() <= TEXT));
        let endless = request(vec!["x".repeat(900); 1 << 12], &[]);
        let texts = members_texts(&endless);
        assert_eq!(texts.len(), MOST_TEXTS + 1);
        assert_eq!(texts[MOST_TEXTS], "and 2048 more");
    }
}
