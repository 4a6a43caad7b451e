//! The container file and the profile of system calls for containers.

use std::process::Command;

use crate::common::{home, machine};
use crate::process::Process;
use crate::sandbox::{Allowed, IO_URING, spawn};
use crate::settings::check_environment;
use crate::systemd::exercise;
use crate::tools::{node_tool, run, wanted};
use crate::{read, repository};

const FILE: &str = "deploy/container/Containerfile";
const PROFILE: &str = "deploy/container/seccomp.json";

/// The instructions, each on one line, without comments.
fn instructions(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let lines = joined
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn a_linter_has_nothing_to_say_about_the_container_file() {
    const NAME: &str = "a_linter_has_nothing_to_say_about_the_container_file";
    let Some(tool) = node_tool(NAME, "dockerfile-utils") else {
        return;
    };
    let lint = |path: &std::path::Path| {
        let mut command = Command::new(&tool);
        command.arg("lint").arg(path);
        run(command)
    };
    let verdict = lint(&repository(FILE));
    assert!(
        verdict.good && verdict.said.trim().is_empty(),
        "{}",
        verdict.said
    );
    let home = home();
    let path = home.path().join("Containerfile");
    std::fs::write(&path, read(FILE).replace("STOPSIGNAL", "STOPSIGN")).expect("a file");
    let verdict = lint(&path);
    assert!(
        !verdict.said.trim().is_empty(),
        "it sees no wrong instruction"
    );
}

/// An image that programs and people find as the documents say.
fn runs_a_broker(stage: &[String]) {
    let values = |instruction: &str| -> Vec<&str> {
        let lines = stage
            .iter()
            .filter_map(|line| line.strip_prefix(instruction));
        lines.map(str::trim).collect()
    };
    assert_eq!(values("USER "), ["65532:65532"]);
    assert_eq!(values("STOPSIGNAL "), ["SIGTERM"]);
    assert_eq!(values("ENTRYPOINT "), ["[\"/usr/bin/kera\"]"]);
    let variables: Vec<(&str, &str)> = values("ENV ")
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.split_once('='))
        .collect();
    check_environment(variables.iter().copied());
}

#[test]
fn the_image_runs_a_broker_as_nobody_in_particular() {
    let all = instructions(&read(FILE));
    let begins: Vec<usize> = (0..all.len())
        .filter(|at| all[*at].starts_with("FROM "))
        .collect();
    let [_, rdma, last] = begins[..] else {
        panic!("not three stages: {begins:?}")
    };
    assert!(all[rdma].ends_with(" AS rdma"), "{}", all[rdma]);
    for stage in [&all[rdma..last], &all[last..]] {
        runs_a_broker(stage);
    }
    let shell = all[last..].iter().any(|line| line.starts_with("RUN "));
    assert!(!shell, "there is no shell in the last stage");

    // It is made of the package, and of nothing else that lies about.
    let ignored = read(&format!("{FILE}.dockerignore"));
    let let_in = ignored.lines().filter_map(|line| line.strip_prefix('!'));
    let let_in: Vec<&str> = let_in.collect();
    assert!(ignored.lines().any(|line| line == "*"));
    let copied = all.iter().filter_map(|line| line.strip_prefix("COPY "));
    let copied = copied.filter(|line| !line.starts_with("--from="));
    let copied: Vec<_> = copied.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(
        (&copied[..], &let_in[..]),
        (&["target/package/kera_*.deb"][..], &copied[..])
    );
    // One script builds what is shipped.
    let manifest: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let script = read("scripts/dist.sh");
    let builds = script.contains("--profile dist --package kera --features rdma");
    assert!(builds && manifest["profile"]["dist"].is_table());
    let release = read("scripts/release.sh");
    let (build, package) = (
        release.find("\nscripts/dist.sh\n"),
        release.find("(scripts/package.sh \""),
    );
    assert!(build.is_some() && build < package);
}

#[test]
fn a_broker_works_under_the_profile_for_containers() {
    const NAME: &str = "a_broker_works_under_the_profile_for_containers";
    let allowed = Allowed::profile(&read(PROFILE));
    for name in IO_URING {
        assert!(allowed.has(name), "{name} is not allowed");
    }
    for name in [
        "mount", "unshare", "setns", "ptrace", "bpf", "keyctl", "reboot",
    ] {
        assert!(!allowed.has(name), "{name} is allowed");
    }
    let Some(process) = Process::start(|command| spawn(command, &allowed)) else {
        machine::skip(
            NAME,
            "needs linux-libc-dev, for the numbers of system calls",
        );
        return;
    };
    exercise(&process);
    let status = process.stop();
    assert!(status.success(), "{status}");
}

#[test]
fn the_program_needs_no_library_that_the_image_lacks() {
    const NAME: &str = "the_program_needs_no_library_that_the_image_lacks";
    let Some(ldd) = wanted(NAME, "ldd") else {
        return;
    };
    let mut command = Command::new(ldd);
    command.arg(env!("CARGO_BIN_EXE_kera"));
    let verdict = run(command);
    assert!(verdict.good, "{}", verdict.said);
    // What libc and the compiler's own library consist of.
    let there = [
        "linux-vdso",
        "ld-linux",
        "libc",
        "libm",
        "libgcc_s",
        "libpthread",
        "libdl",
        "librt",
    ];
    for line in verdict.stdout.lines() {
        let path = line.split_whitespace().next().unwrap_or_default();
        let library = path.rsplit('/').next().unwrap_or_default();
        let name = library.split(['.', '-']).next().unwrap_or_default();
        let known = there
            .iter()
            .any(|known| known.split('-').next() == Some(name));
        assert!(known, "the image has no {library}: {}", verdict.stdout);
    }
}
