//! What a client may do, as Kafka's answers tell it: a bit for each operation. There is no access control,
//! so everybody may do all that Kera does.

const READ: i32 = 1 << 3;
const WRITE: i32 = 1 << 4;
const CREATE: i32 = 1 << 5;
const DELETE: i32 = 1 << 6;
const ALTER: i32 = 1 << 7;
const DESCRIBE: i32 = 1 << 8;
const DESCRIBE_CONFIGS: i32 = 1 << 10;
const ALTER_CONFIGS: i32 = 1 << 11;
const IDEMPOTENT_WRITE: i32 = 1 << 12;

/// To a topic.
pub(crate) const TOPIC: i32 =
    READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS;
/// To the internal topic, whose records are the broker's own.
pub(crate) const INTERNAL_TOPIC: i32 = DESCRIBE | DESCRIBE_CONFIGS;
/// To a group.
pub(crate) const GROUP: i32 = READ | DELETE | DESCRIBE;
/// To the cluster.
pub(crate) const CLUSTER: i32 = CREATE | DESCRIBE | DESCRIBE_CONFIGS | IDEMPOTENT_WRITE;
