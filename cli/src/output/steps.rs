//! What programs are told of a command that takes its time: JSON, a line for each step, and one for the end.
//!
//! Each line is an object with `event`: `step`, or `end` in the last one, which also has `outcome` and, if
//! something failed, `error`. The other fields are the command's own.

use serde::Serialize;

use super::Out;
use crate::failure::Failure;

/// The lines of one command; silent unless they are asked for.
#[derive(Debug)]
pub(crate) struct Steps<T> {
    on: bool,
    told: Option<T>,
}

#[derive(Serialize)]
struct Step<'a, T> {
    event: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize)]
struct End<'a, T> {
    event: &'static str,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    body: &'a T,
}

impl<T: Serialize + PartialEq + Clone> Steps<T> {
    /// Lines are written if `on`.
    pub(crate) fn new(on: bool) -> Self {
        Self { on, told: None }
    }

    /// Says how far it is, unless that was said last.
    pub(crate) fn step(&mut self, now: &T) -> Result<(), Failure> {
        if !self.on || self.told.as_ref() == Some(now) {
            return Ok(());
        }
        self.told = Some(now.clone());
        line(&Step {
            event: "step",
            body: now,
        })
    }
}

/// Writes the last line: how it ended.
pub(crate) fn end(
    outcome: &str,
    failure: Option<&Failure>,
    body: &impl Serialize,
) -> Result<(), Failure> {
    line(&End {
        event: "end",
        outcome,
        error: failure.map(Failure::text),
        body,
    })
}

fn line(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = Out::stdout();
    let text = serde_json::to_string(value)? + "\n";
    out.bytes(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, PartialEq, Serialize)]
    struct Body {
        left: u32,
    }

    #[test]
    fn every_line_says_what_it_is() {
        let step = Step {
            event: "step",
            body: &Body { left: 3 },
        };
        let text = serde_json::to_string(&step).unwrap();
        assert_eq!(text, r#"{"event":"step","left":3}"#);
        let end = |error| End {
            event: "end",
            outcome: "done",
            error,
            body: &Body { left: 0 },
        };
        let text = serde_json::to_string(&end(None)).unwrap();
        assert_eq!(text, r#"{"event":"end","outcome":"done","left":0}"#);
        let text = serde_json::to_string(&end(Some("no answer".into()))).unwrap();
        assert_eq!(
            text,
            r#"{"event":"end","outcome":"done","error":"no answer","left":0}"#
        );
    }

    #[test]
    fn what_was_said_last_is_not_said_again() {
        let mut steps = Steps::new(true);
        steps.step(&Body { left: 3 }).unwrap();
        assert!(steps.told == Some(Body { left: 3 }));
        let mut silent = Steps::new(false);
        silent.step(&Body { left: 3 }).unwrap();
        assert!(silent.told.is_none());
    }
}
