//! What of a seed's run is left out.

/// Less than a seed decides: a part of its faults and of its clients, or less time.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Cut {
    /// Faults that do not happen, by their numbers in the story: 3,4,9.
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    pub without: Vec<u32>,
    /// Only the first so many producers.
    #[arg(long, value_name = "COUNT")]
    pub producers: Option<usize>,
    /// Only the first so many members of the group.
    #[arg(long, value_name = "COUNT")]
    pub members: Option<u32>,
    /// Only the first so many producers with transactions.
    #[arg(long, value_name = "COUNT")]
    pub transactions: Option<u32>,
    /// Only the first so many producers of the compacted stream.
    #[arg(long, value_name = "COUNT")]
    pub table: Option<u32>,
    /// Only the first so many members of the group that keeps the order of keys.
    #[arg(long, value_name = "COUNT")]
    pub keys: Option<u32>,
    /// Only the first so many members of the share group.
    #[arg(long, value_name = "COUNT")]
    pub shares: Option<u32>,
    /// No fault begins after so many milliseconds.
    #[arg(long, value_name = "MS")]
    pub trouble: Option<u64>,
}

impl Cut {
    /// The options of the command line that say so.
    pub fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                options.extend([format!("--{name}"), value]);
            }
        };
        let numbers: Vec<_> = self.without.iter().map(u32::to_string).collect();
        add("without", (!numbers.is_empty()).then(|| numbers.join(",")));
        add("producers", self.producers.map(|count| count.to_string()));
        add("members", self.members.map(|count| count.to_string()));
        add(
            "transactions",
            self.transactions.map(|count| count.to_string()),
        );
        add("table", self.table.map(|count| count.to_string()));
        add("keys", self.keys.map(|count| count.to_string()));
        add("shares", self.shares.map(|count| count.to_string()));
        add("trouble", self.trouble.map(|millis| millis.to_string()));
        options
    }
}
