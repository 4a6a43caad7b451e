//! What a cluster with many brokers and groups costs, measured with real records and no bytes: the metadata store, what
//! each broker follows of it, the controller's decisions, and the jobs that look after replicas.

mod cleanup;
mod cluster;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kera_controller::{Limits, Picture, UnderWay, plan, spread, takeovers};
use kera_metadata::{Compare, MetadataError, MetadataStore, Transaction, Write};

use crate::os::memory_taken as taken;

use cluster::Cluster;

/// Operations of a transaction beside the comparison that a broker is controller, as few as etcd takes.
const MOST_OPERATIONS: usize = 127;
/// How often jobs look at what is held, in seconds.
const ROUND: f64 = 60.0;
/// For which more groups than were measured the costs are computed.
const FAR: f64 = 100e6;

/// How large the clusters are.
#[derive(Clone, Debug, clap::Args)]
pub struct ScaleArgs {
    /// Measure what clusters with many groups cost, and play no seeds.
    #[arg(long, conflicts_with_all = ["seed", "planted"])]
    pub scale: bool,
    /// Closed groups of each cluster that is measured.
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", default_values_t = [100_000, 300_000, 1_000_000])]
    groups: Vec<u64>,
    /// Brokers of each; each owns ten streamlets.
    #[arg(long, default_value_t = 1000)]
    brokers: u32,
}

/// One line of the table: what is counted or measured, in which unit, and how much for each number of groups.
struct Line {
    what: &'static str,
    unit: &'static str,
    found: Vec<f64>,
}

/// Measures, and prints a table.
pub fn play(args: &ScaleArgs) -> ExitCode {
    let mut lines: Vec<Line> = Vec::new();
    for groups in &args.groups {
        let found = match measure(args.brokers, *groups) {
            Ok(found) => found,
            Err(error) => {
                eprintln!("{groups} groups: {error}");
                return ExitCode::FAILURE;
            }
        };
        for (at, (what, unit, value)) in found.into_iter().enumerate() {
            if lines.len() <= at {
                lines.push(Line {
                    what,
                    unit,
                    found: Vec::new(),
                });
            }
            lines[at].found.push(value);
        }
    }
    print(args, &lines);
    ExitCode::SUCCESS
}

fn print(args: &ScaleArgs, lines: &[Line]) {
    let groups = args.groups.iter().map(|count| format!(" {count} |"));
    println!(
        "| {} brokers, closed groups: |{} computed: {FAR:.0} |",
        args.brokers,
        groups.collect::<String>()
    );
    println!("|---|{}---|", "---|".repeat(args.groups.len()));
    for line in lines {
        let found = line
            .found
            .iter()
            .map(|value| format!(" {} |", told(*value)));
        let far = computed(&args.groups, &line.found);
        println!(
            "| {}, {} |{} {} |",
            line.what,
            line.unit,
            found.collect::<String>(),
            far.map_or_else(|| "-".to_owned(), told)
        );
    }
}

fn told(value: f64) -> String {
    match value {
        _ if value == 0.0 => "0".to_owned(),
        _ if value < 10.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// What the line through the first and the last point says of [`FAR`] groups.
fn computed(groups: &[u64], found: &[f64]) -> Option<f64> {
    let (first, last) = (*groups.first()? as f64, *groups.last()? as f64);
    let (low, high) = (*found.first()?, *found.last()?);
    let slope = (high - low) / (last - first);
    (last > first).then_some(high + slope * (FAR - last))
}

type Found = Vec<(&'static str, &'static str, f64)>;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn measure(brokers: u32, groups: u64) -> Result<Found, MetadataError> {
    let cluster = Cluster::new(brokers, groups)?;
    let members = cluster.members(&[]);
    let mut found = Found::new();

    // What a broker does that starts, before it serves anything.
    let begun = Instant::now();
    let image = cluster.store.load()?;
    let loaded = begun.elapsed();
    let (before, begun) = (taken(), Instant::now());
    let picture = Picture::of(&image);
    found.push(("start of a broker: records are read", "ms", millis(loaded)));
    found.push(("start: the view is made", "ms", millis(begun.elapsed())));
    found.push((
        "memory of the view",
        "MiB",
        (taken() - before) / f64::from(1 << 20),
    ));
    drop(image);

    // What goes on while nothing happens.
    let begun = Instant::now();
    let at_rest = plan(&picture, &members, &UnderWay::default(), &Limits::default());
    assert!(at_rest.moves.is_empty() && at_rest.stranded.is_empty());
    found.push((
        "at rest: a look of the controller",
        "ms",
        millis(begun.elapsed()),
    ));
    let begun = Instant::now();
    let moves = spread(&picture, &members, u64::MAX).moves.len();
    assert_eq!(moves, 0, "replicas lie evenly");
    found.push((
        "at rest: a plan of where replicas go, at each broker and round",
        "ms",
        millis(begun.elapsed()),
    ));
    let round = cleanup::round(&cluster);
    let per_second = f64::from(brokers) / ROUND;
    found.push((
        "at rest: reads of the store for replicas, whole cluster",
        "1/s",
        round.reads as f64 * per_second,
    ));
    found.push((
        "at rest: transactions for replicas, whole cluster",
        "1/s",
        round.transactions as f64 * per_second,
    ));
    found.push((
        "at rest: messages for replicas, whole cluster",
        "1/s",
        round.messages as f64 * per_second,
    ));
    found.push((
        "at rest: streamlets named in them, whole cluster",
        "1/s",
        round.asked as f64 * per_second,
    ));
    found.push((
        "at rest: replicas named in their answers, whole cluster",
        "1/s",
        round.named as f64 * per_second,
    ));
    found.push((
        "at rest: a round of jobs of one broker",
        "ms",
        millis(round.took),
    ));
    found.push((
        "at rest: memory that a round of jobs takes for a while",
        "MiB",
        round.memory / f64::from(1 << 20),
    ));
    found.push((
        "memory of remembered records of one broker",
        "MiB",
        round.remembered / f64::from(1 << 20),
    ));

    failover(&cluster, &picture, &mut found)?;
    Ok(found)
}

/// A broker is gone: what the controller decides, and what that and the new owners ask of the store.
fn failover(cluster: &Cluster, picture: &Picture, found: &mut Found) -> Result<(), MetadataError> {
    let gone = 1;
    let left = cluster.members(&[gone]);
    let begun = Instant::now();
    let decided = plan(picture, &left, &UnderWay::default(), &Limits::default());
    let transactions = takeovers(picture, &decided.moves, MOST_OPERATIONS);
    found.push((
        "failover: the controller decides",
        "ms",
        millis(begun.elapsed()),
    ));
    let before = cluster.store.asked();
    let mut told = 0;
    for transaction in transactions {
        told += transaction.write.len();
        cluster.store.commit(transaction)?;
    }
    for one in &decided.moves {
        // As a new owner does: its epoch, and what is recorded of the streamlet.
        let which = one.which();
        let record = cluster.streamlet(which)?;
        let next = record.in_next_epoch(record.owner).expect("epochs are left");
        let compare = vec![Compare::streamlet(&record)];
        let write = vec![Write::PutStreamlet(next)];
        cluster.store.commit(Transaction::new(compare, write))?;
        cluster
            .store
            .load_streamlet(which.stream, which.streamlet)?;
        told += 1;
    }
    let asked = cluster.store.asked().since(&before);
    let lost = picture
        .streamlets()
        .flat_map(|(_, _, streamlet)| streamlet.groups.values());
    let lost = lost.filter(|group| group.copies.contains(&gone)).count();
    found.push((
        "failover of one broker: streamlets that change owners",
        "",
        decided.moves.len() as f64,
    ));
    found.push(("failover: transactions", "", asked.transactions as f64));
    found.push(("failover: operations of them", "", asked.operations as f64));
    found.push(("failover: reads", "", asked.questions() as f64));
    found.push((
        "failover: changes told to all brokers together",
        "",
        told as f64 * f64::from(cluster.brokers - 1),
    ));
    found.push((
        "once it counts as lost: replicas to build, a transaction each",
        "",
        lost as f64,
    ));
    Ok(())
}
