//! The checks of the fuzz targets `kafka_request` and `login` over their corpora, each input as it is and mutated,
//! and the seeds of the first one.

use std::fs;
use std::path::PathBuf;

#[path = "support/dice.rs"]
mod dice;
#[path = "../../fuzz/checks/kafka_request.rs"]
mod kafka_request;
#[path = "../../fuzz/checks/login.rs"]
mod login;
#[path = "support/messages.rs"]
mod messages;
#[path = "../../xtask/tests/fuzz/mutate.rs"]
mod mutate;
#[path = "support/newer.rs"]
mod newer_bodies;
#[path = "support/requests.rs"]
mod requests;

use dice::Dice;
use kera_kafka_shim::wire::schema::shape;

/// Of each input of `login`: it takes a connection, and a password is derived for most.
const LOGINS: u64 = 100;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/kafka_request")
}

#[test]
fn login_corpus() {
    let home = kera_testkit::home();
    let world = login::World::start(home.path());
    mutate::replay_some(&corpus().with_file_name("login"), LOGINS, |data| {
        world.check(data)
    });
}

#[test]
fn kafka_request_corpus() {
    mutate::replay(&corpus(), kafka_request::check);
}

/// A seed: the file's name and the request.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (api_key, version) in messages::all_versions() {
        let Some(shape) = shape(api_key) else {
            continue;
        };
        // The oldest, the newest, and the first of each kind of length: the others differ little.
        if ![shape.min, shape.max, shape.flexible, shape.flexible - 1].contains(&version) {
            continue;
        }
        // Of a few, the longest that is still small: it reaches the most fields.
        let request = |seed| {
            let mut dice = Dice::new(seed);
            requests::request(api_key, version, 7, &mut dice)
        };
        let made = (0..20).map(request).filter(|request| request.len() < 600);
        if let Some(longest) = made.max_by_key(Vec::len) {
            seeds.push((format!("{}-{version}", shape.name), longest));
        }
    }
    // What aborts a process that believes its codec.
    let head = |api_key: u8, version: u8| [0, api_key, 0, version, 0, 0, 0, 1, 0xff, 0xff];
    let produce = [0xff, 0xff, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff];
    let metadata = [0, 0xff, 0xff, 0xff, 0xff, 0x0f];
    seeds.push((
        "killer-produce".into(),
        [&head(0, 3)[..], &produce].concat(),
    ));
    seeds.push((
        "killer-metadata".into(),
        [&head(3, 9)[..], &metadata].concat(),
    ));
    seeds.push(("api-versions-99".into(), head(18, 99).to_vec()));
    seeds.push(("unknown-api".into(), head(200, 0).to_vec()));
    seeds
}

/// The seeds are what the codec's encoder makes. With `KERA_REGENERATE=1` the test writes them.
#[test]
fn seeds_are_what_the_encoder_makes() {
    let folder = corpus();
    for (name, bytes) in seeds() {
        let path = folder.join(&name);
        if std::env::var_os("KERA_REGENERATE").is_some() {
            fs::create_dir_all(&folder).expect("the corpus can be made");
            fs::write(&path, &bytes).expect("a seed can be written");
        }
        assert!(
            fs::read(&path).unwrap_or_default() == bytes,
            "{} is not what the encoder makes; if that is meant, run `make regenerate`",
            path.display()
        );
    }
}

/// Inputs that stop at the first check would prove nothing.
#[test]
fn seeds_reach_the_codec() {
    for (name, bytes) in seeds() {
        let reaches = kafka_request::reaches_the_codec(&bytes);
        let made_to_stop = name.contains("killer") || name.contains("99") || name == "unknown-api";
        assert_eq!(reaches, !made_to_stop, "{name}");
    }
}
