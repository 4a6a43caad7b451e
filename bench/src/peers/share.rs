//! The load of a share group: a program in Java, as librdkafka has no share groups.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::kafka;
use crate::load::Plan;

const SOURCE: &str = include_str!("../../peers/kafka/share/Share.java");

/// The program that makes the load, built if it is not there.
pub(crate) fn program(build: &Path, plan: &Plan) -> Result<Command> {
    // Kera's share groups are measured with it too, also where no Apache Kafka runs.
    kafka::fetch(build)?;
    let jars = kafka::home(build).join("lib").join("*");
    let classes = kafka::home(build).join("share");
    compile(&jars, &classes)?;
    let batch_records = (plan.batch_bytes / plan.record_bytes).max(1);
    let mut command = Command::new("java");
    command
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-cp"])
        .arg(format!("{}:{}", classes.display(), jars.display()))
        .args(["Share", &plan.bootstrap, &plan.topic])
        .arg(plan.crowd.consumers.to_string())
        .arg(plan.crowd.millis.unwrap_or(1_000).to_string())
        .arg(plan.crowd.work_us.to_string())
        .arg(batch_records.to_string())
        .arg(plan.record_bytes.to_string());
    Ok(command)
}

fn compile(jars: &Path, classes: &Path) -> Result<()> {
    let source = classes.join("Share.java");
    let complete = classes.join("complete");
    if fs::read_to_string(&complete).is_ok_and(|text| text == SOURCE) {
        return Ok(());
    }
    fs::create_dir_all(classes)?;
    fs::write(&source, SOURCE)?;
    let output = Command::new("javac")
        .args(["--release", "17", "-cp"])
        .arg(jars)
        .arg("-d")
        .arg(classes)
        .arg(&source)
        .output()
        .context("cannot run javac for the load of share groups; install a JDK, 17 or later")?;
    ensure!(
        output.status.success(),
        "javac: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(fs::write(complete, SOURCE)?)
}
