//! What control calls ask for, in a few words.

use kera_protocol::v1;
use kera_rpc::scram::Mechanism;

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
    format!("pin={} policy={policy}", request.name)
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

/// What a change of a role's members asks for.
pub(crate) fn members_text(request: &v1::AlterRoleRequest) -> String {
    let part = |key: &str, names: &[String]| match names {
        [] => None,
        names => Some(format!("{key}={}", names.join(","))),
    };
    let parts = [part("add", &request.add), part("remove", &request.remove)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
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
