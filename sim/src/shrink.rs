//! A shorter schedule with the same finding.

use std::process::ExitCode;

use crate::Args;
use crate::cut::Cut;
use crate::seeds::{self, Outcome};

/// What two findings of one cause have in common: how the first of a run begins, whatever its numbers are.
fn kind(outcome: &Outcome) -> Option<String> {
    let first = outcome.findings.first()?;
    let beginning = first.chars().take_while(|letter| *letter != ';');
    let words = beginning.filter(|letter| !letter.is_ascii_digit());
    Some(words.take(40).collect())
}

fn faults(outcome: &Outcome) -> u32 {
    outcome.facts["faults"].as_u64().unwrap_or(0) as u32
}

/// Plays runs of the seed with ever less in them, and keeps what still has the finding.
struct Shrinking<'a> {
    args: &'a Args,
    seed: u64,
    kind: String,
    played: u32,
    best: Cut,
    /// Faults that the best run draws, with those that it leaves out.
    faults: u32,
}

impl Shrinking<'_> {
    /// Keeps `cut` if the run still has the finding.
    fn try_out(&mut self, cut: Cut) -> bool {
        if cut == self.best || self.played > self.args.tries {
            return false;
        }
        self.played += 1;
        let rule = self.args.planted.as_deref();
        let Ok(outcome) = seeds::play_one(self.args, self.seed, &cut, rule) else {
            return false;
        };
        let same = kind(&outcome).as_ref() == Some(&self.kind);
        if same {
            self.best = cut;
            self.faults = faults(&outcome);
        }
        same
    }

    /// Leaves faults out, many at a time at first, while the finding stays.
    fn leave_faults_out(&mut self) {
        let mut width = self.faults.div_ceil(2);
        while width > 0 {
            let mut from = 1;
            while from <= self.faults {
                let mut cut = self.best.clone();
                cut.without
                    .extend(from..(from + width).min(self.faults + 1));
                cut.without.sort_unstable();
                cut.without.dedup();
                self.try_out(cut);
                from += width;
            }
            width /= 2;
        }
    }

    fn leave_clients_out(&mut self, producers: usize, members: u32) {
        for count in 1..producers {
            let producers = Some(count);
            if self.try_out(Cut {
                producers,
                ..self.best.clone()
            }) {
                break;
            }
        }
        let transactions = Some(0);
        self.try_out(Cut {
            transactions,
            ..self.best.clone()
        });
        let table = Some(0);
        self.try_out(Cut {
            table,
            ..self.best.clone()
        });
        let keys = Some(0);
        self.try_out(Cut {
            keys,
            ..self.best.clone()
        });
        let shares = Some(0);
        self.try_out(Cut {
            shares,
            ..self.best.clone()
        });
        for count in 0..members {
            let members = Some(count);
            if self.try_out(Cut {
                members,
                ..self.best.clone()
            }) {
                break;
            }
        }
    }
}

/// Shrinks the run of the seed, and prints the command that repeats what is left of it.
pub fn play(args: &Args) -> ExitCode {
    let Some(seed) = args.seed else {
        return ExitCode::from(2);
    };
    let whole = match seeds::play_one(args, seed, &args.cut, args.planted.as_deref()) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("a run cannot be started: {error}");
            return ExitCode::from(2);
        }
    };
    let Some(kind) = kind(&whole) else {
        println!("seed {seed} has no finding: there is nothing to shrink");
        return ExitCode::FAILURE;
    };
    println!("seed {seed}: {}", whole.findings[0]);
    let mut shrinking = Shrinking {
        args,
        seed,
        kind,
        played: 1,
        best: args.cut.clone(),
        faults: faults(&whole),
    };
    let count = |name: &str| whole.facts[name].as_u64().unwrap_or(0);
    // A shorter time of trouble leaves out the last faults all at once.
    let trouble = count("trouble_ms");
    for part in [8, 4, 2] {
        let trouble = Some(trouble / part);
        if shrinking.try_out(Cut {
            trouble,
            ..shrinking.best.clone()
        }) {
            break;
        }
    }
    shrinking.leave_faults_out();
    shrinking.leave_clients_out(count("producers") as usize, count("members") as u32);
    let Shrinking {
        best,
        played,
        faults: drawn,
        ..
    } = shrinking;
    println!(
        "{played} runs; of {} faults {} remain; again: {}",
        faults(&whole),
        drawn.saturating_sub(best.without.len() as u32),
        args.again(seed, &best)
    );
    ExitCode::SUCCESS
}
