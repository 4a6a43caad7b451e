//! Trims of one stream while everything else goes on; retention looks after the other.

use std::sync::Arc;
use std::time::Duration;

use kera_history::{Event, Lane};
use kera_protocol::v1;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::world::{KEYED, LANES, STREAMLETS, World};

/// Cuts a lane at a time, somewhere in its older half.
pub struct Trimmer {
    stop: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Trimmer {
    pub fn start(world: &World, seed: u64) -> Self {
        let stop = Arc::new(Notify::new());
        let (world, stopped) = (world.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let mut rng = StdRng::seed_from_u64(!seed);
            loop {
                let pause = Duration::from_millis(rng.random_range(10..150));
                tokio::select! {
                    () = stopped.notified() => break,
                    () = sleep(pause) => {}
                }
                if let Err(error) = trim(&world, &mut rng).await {
                    world.complain(format!("a trim was refused: {error}"));
                }
            }
        });
        Self { stop, task }
    }

    pub async fn finish(self) {
        self.stop.notify_one();
        self.task.await.expect("the trimmer does not panic");
    }
}

async fn trim(world: &World, rng: &mut StdRng) -> Result<(), kera_rpc::RpcError> {
    let lane = Lane {
        stream: KEYED,
        streamlet: rng.random_range(0..STREAMLETS),
        lane: rng.random_range(0..LANES),
    };
    let described = world.describe(KEYED).await?;
    let found = described
        .into_iter()
        .find(|found| (found.streamlet, found.lane) == (lane.streamlet, lane.lane));
    let Some(found) = found else {
        world.complain(format!("lane {lane} has gone"));
        return Ok(());
    };
    let older_half = found.log_start..=(found.log_start + found.head_ordinal) / 2;
    let to = rng.random_range(older_half);
    // It may take effect although its answer is lost.
    world.note_trim(lane, to);
    let request = v1::TrimStreamRequest {
        name: World::stream_name(KEYED).to_owned(),
        streamlet: Some(lane.streamlet),
        lane: Some(lane.lane),
        to: Some(v1::trim_stream_request::To::Ordinal(to)),
        local: false,
    };
    let answer = world.client().call(request).await?;
    for start in answer.lanes {
        world.recorder().record(Event::LogTrimmed {
            lane: Lane {
                streamlet: start.streamlet,
                lane: start.lane,
                ..lane
            },
            start: start.log_start,
        });
    }
    Ok(())
}
