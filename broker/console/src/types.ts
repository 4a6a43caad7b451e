// Answers of /api/v1, as docs/api.md has them.

export type Severity = "ok" | "attention" | "trouble";

export interface Problem {
  severity: Severity;
  object: string;
  problem: string;
  advice: string;
}

export interface Health {
  state: Severity;
  sentence: string;
  advice: string;
  problems: Problem[];
  problems_total: number;
}

export interface Silent {
  broker_id: number;
  reason: string;
}

export interface Rates {
  records_in: number | null;
  bytes_in: number | null;
  bytes_out: number | null;
}

export interface GroupLag {
  group: string;
  lag: number;
  /** Lanes whose owners have not told where they end: the lag lacks theirs. */
  unknown_lanes: number;
}

export interface StreamRow extends Rates {
  name: string;
  streamlets: number;
  partitions: number;
  lane_generation: number;
  replicas: number;
  ack: string;
  records: number;
  bytes: number;
  unacknowledged: number;
  unserved_streamlets: number;
  groups: GroupLag[];
  groups_total: number;
  lag: number;
}

export interface GroupRow {
  group: string;
  kind: "native" | "kafka";
  order: string | null;
  state: string | null;
  streams: { stream: string; lag: number; unknown_lanes: number }[];
  streams_total: number;
  members: number;
  leases: number;
  lag: number;
  unknown_lanes: number;
  /** Records that an open transaction keeps from it; null: not told. */
  above_stable: number | null;
  records_in: number | null;
  records_consumed: number | null;
  catches_up_s: number | null;
  falls_behind: boolean;
  why: string;
  coordinator: number;
}

export interface BrokerRow extends Rates {
  broker_id: number;
  state: string;
  role: string;
  controller: boolean;
  answered: boolean;
  silent: string | null;
  not_ready: string | null;
  address: string;
  kafka: string | null;
  host: string;
  rack: string | null;
  version: string;
  started_ms: number | null;
  streamlets: number;
  share: number;
  copies: number;
  held_bytes: number;
  to_come_bytes: number;
  disk_free_bytes: number | null;
  disk_total_bytes: number | null;
  pool_bytes: number | null;
  pool_used_bytes: number | null;
  resident_bytes: number | null;
  connections: number | null;
  cpu_share: number | null;
}

export interface TimelineEvent {
  at_ms: number;
  severity: Severity;
  text: string;
}

export interface Overview extends Rates {
  taken_ms: number;
  health: Health;
  answered_by: number;
  version: string;
  acts: boolean;
  cluster: string | null;
  controller: number | null;
  brokers: number;
  brokers_answering: number;
  streams: number;
  partitions: number;
  records: number;
  bytes: number;
  groups: number;
  groups_behind: number;
  under_replicated_groups: number;
  to_come_bytes: number;
  silent: Silent[];
  busiest_streams: StreamRow[];
  lagging_groups: GroupRow[];
  events: TimelineEvent[];
}

export interface Page<T> {
  taken_ms: number;
  silent: Silent[];
  total: number;
  offset: number;
  items: T[];
}

export interface SegmentGroup {
  group: number;
  epoch: number;
  first_ordinal: number;
  end_ordinal: number;
  bytes: number;
  closed: boolean;
  brokers: number[];
  replicas: { broker: number; end: number; placed: number | null; flushed: number | null; lost: string | null }[];
}

export interface LaneDetail {
  streamlet: number;
  lane: number;
  partition: number;
  owner: number | null;
  epoch: number;
  log_start: number;
  head_ordinal: number;
  end_ordinal: number;
  records: number;
  bytes: number;
  producers: number;
  groups_total: number;
  groups: SegmentGroup[];
}

export interface StreamDetail extends StreamRow {
  taken_ms: number;
  /** null: the user may not see them. */
  settings: Record<string, string | number | boolean> | null;
  under_replicated_groups: number;
  consumer_groups: GroupRow[];
  unserved: { streamlet: number; reason: string }[];
  lanes_total: number;
  offset: number;
  lanes: LaneDetail[];
}

export interface GroupDetail extends GroupRow {
  taken_ms: number;
  protocol: string;
  member_descriptions: {
    member: string;
    client: string;
    host: string;
    instance: string;
    leases: number;
    partitions: number;
    last_heartbeat_ms_ago: number;
    lag: number;
  }[];
  lanes_total: number;
  offset: number;
  lanes: {
    streamlet: number;
    lane: number;
    committed: number;
    finished_above: number;
    /** null, and so is the lag: its owner has not told where it ends. */
    head_ordinal: number | null;
    lag: number | null;
    above_stable: number;
    leases_total: number;
    leases: { lease: number; member: string; start_ordinal: number; end_ordinal: number }[];
    why: string;
  }[];
  partitions_total: number;
  partitions: {
    stream: string;
    partition: number;
    committed: number | null;
    head_ordinal: number | null;
    lag: number | null;
    above_stable: number;
    member: string;
    why: string;
  }[];
}

export interface BrokerDetail extends BrokerRow {
  taken_ms: number;
  /** null, as the next four: it does not answer. */
  data_dir: string | null;
  io_engine: string | null;
  pid: number | null;
  groups: number | null;
  recovery_ms: number | null;
  changed_settings: { name: string; value: string; configured: string; of_all: boolean }[];
  troubles: { stream: string; streamlet: number; lane: number | null; reason: string; lasted_ms: number | null }[];
  troubles_total: number;
  replica_store: null | {
    disk_dir: string;
    memory_bytes: number;
    memory_used_bytes: number;
    copies_open: number;
    copies_sealed: number;
    copies_flushed: number;
    received_bytes: number;
    refusals: number;
  };
  peers: {
    broker_id: number;
    address: string;
    unreachable: string | null;
    down_ms: number | null;
    shipped_bytes: number;
    in_flight_bytes: number;
    lag_bytes: number;
    open_groups: number;
    lost_copies: number;
    free_bytes: number;
  }[];
  background: null | {
    round_ended_ms: number | null;
    wanting: number;
    built: number;
    built_bytes: number;
    to_place: number;
    to_place_bytes: number;
    failed: number;
    scrubbed: number;
    scrubbed_bytes: number;
    scrub_streamlets: number;
    scrub_done: number;
    harmed: number;
    mended: number;
    unsound: number;
    missing: number;
  };
  transports: { name: string; used: boolean; unusable: string | null }[];
}

export interface Shown {
  encoding: "null" | "json" | "text" | "base64" | "hidden";
  data: string;
  bytes: number;
  truncated: boolean;
  masked: boolean;
}

export interface RecordView {
  streamlet: number;
  lane: number;
  partition: number;
  ordinal: number;
  timestamp_ms: number;
  key: Shown;
  value: Shown;
  headers: { name: string; value: Shown }[];
}

export interface RecordsView {
  stream: string;
  records: RecordView[];
  next: string;
  looked_at_bytes: number;
  lanes: number;
  lanes_left_out: number;
  problems: string[];
}

export interface SettingsView {
  broker_id: number;
  items: { name: string; value: string; default: string; configured: string | null; meaning: string }[];
}

/** What came of an act that only tells whether something is different now. */
export interface Changed {
  changed: boolean;
}

export interface Trimmed {
  lanes_total: number;
  freed_bytes: number;
}
