//! Makes tests of scenarios.

/// A test of each scenario for each client.
macro_rules! matrix {
    ($($client:ident = $kind:ident: [$($module:ident::{$($scenario:ident),* $(,)?}),* $(,)?];)*) => {
        $(mod $client {
            use crate::common::Kind;
            use crate::stage::run;
            $($(
                #[test]
                fn $scenario() {
                    run(Kind::$kind, stringify!($scenario), crate::$module::$scenario);
                }
            )*)*
        })*
    };
}

/// All scenarios, for each client.
macro_rules! every {
    ($($client:ident = $kind:ident),* $(,)?) => {
        matrix! {$(
            $client = $kind: [
                producing::{
                    every_codec_comes_back_exactly, keys_choose_kafkas_partitions,
                    acknowledgements_of_all_kinds, append_time_is_the_brokers,
                    too_large_is_refused,
                },
                reading::{
                    offsets_inside_a_compressed_batch, seeking, positions_out_of_range,
                    offsets_of_times, large_records_and_small_fetches,
                },
                groups::{
                    range_rebalances, cooperative_rebalances, static_members_keep_their_partitions,
                    commits_survive_the_client, a_dead_member_is_replaced,
                },
                admin::{cluster_and_topics, configs, partitions_grow, groups_are_administered,
                    records_are_deleted},
                compaction::{compacted_topic},
                topics::{auto_create_on, auto_create_off},
                restart::{a_killed_broker_loses_nothing, a_killed_broker_keeps_its_groups},
            ];
        )*}
    };
}
