//! Runs programs under lists of allowed system calls, as service managers and containers do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// The names of the three calls that io_uring consists of.
pub const IO_URING: [&str; 3] = ["io_uring_setup", "io_uring_enter", "io_uring_register"];

/// Numbers of this machine's system calls, by name; none where its headers are not installed.
fn numbers() -> Option<BTreeMap<String, i64>> {
    let (folder, file) = match std::env::consts::ARCH {
        "x86_64" => ("x86_64-linux-gnu/", "asm/unistd_64.h"),
        "aarch64" => ("", "asm-generic/unistd.h"),
        _ => return None,
    };
    let text = fs::read_to_string(format!("/usr/include/{folder}{file}"))
        .or_else(|_| fs::read_to_string(format!("/usr/include/{file}")))
        .ok()?;
    let mut numbers = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some("#define") {
            continue;
        }
        let name = words.next().and_then(|word| {
            word.strip_prefix("__NR3264_")
                .or_else(|| word.strip_prefix("__NR_"))
        });
        if let (Some(name), Some(Ok(number))) = (name, words.next().map(str::parse)) {
            numbers.insert(name.to_owned(), number);
        }
    }
    Some(numbers)
}

/// A list of allowed system calls; all others answer EPERM.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    names: BTreeSet<String>,
    /// The first argument's bits that must be 0, by name.
    masked: BTreeMap<String, u64>,
    /// Calls that answer with another error than EPERM.
    refused: BTreeMap<String, u32>,
}

impl Allowed {
    /// Calls by name; names that this machine does not know are passed over.
    pub fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            names: names.into_iter().map(str::to_owned).collect(),
            ..Self::default()
        }
    }

    /// A profile in the form that container runtimes take.
    pub fn profile(text: &str) -> Self {
        let profile: serde_json::Value = serde_json::from_str(text).expect("a profile is JSON");
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let mut allowed = Self::default();
        for entry in profile["syscalls"].as_array().expect("a list") {
            let names = entry["names"].as_array().expect("a list");
            let names = names.iter().map(|name| name.as_str().expect("a name"));
            if entry["action"] == "SCMP_ACT_ERRNO" {
                let error = entry["errnoRet"].as_u64().expect("an error");
                let error = u32::try_from(error).expect("an error");
                let refused = names.map(|name| (name.to_owned(), error));
                allowed.refused.extend(refused);
                continue;
            }
            assert_eq!(entry["action"], "SCMP_ACT_ALLOW");
            match entry["args"].as_array() {
                None => allowed.names.extend(names.map(str::to_owned)),
                Some(args) => {
                    assert_eq!(
                        args.len(),
                        1,
                        "one condition is all that is understood here"
                    );
                    assert_eq!(args[0]["op"], "SCMP_CMP_MASKED_EQ");
                    assert_eq!(
                        (&args[0]["index"], &args[0]["valueTwo"]),
                        (&0.into(), &0.into())
                    );
                    let mask = args[0]["value"].as_u64().expect("a mask");
                    allowed
                        .masked
                        .extend(names.map(|name| (name.to_owned(), mask)));
                }
            }
        }
        allowed
    }

    /// Without the calls of these names.
    pub fn without(mut self, names: &[&str]) -> Self {
        self.names.retain(|name| !names.contains(&name.as_str()));
        self
    }

    /// Whether a call is allowed, whatever its arguments.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The filters, in the order in which they are taken. None where this machine's system calls are
    /// not known.
    fn programs(&self) -> Option<Vec<BpfProgram>> {
        let numbers = numbers()?;
        let arch = TargetArch::try_from(std::env::consts::ARCH).expect("a known machine");
        let mut programs = Vec::new();
        for (name, error) in &self.refused {
            let rules = BTreeMap::from([(numbers[name], Vec::new())]);
            let (mismatch, refuse) = (SeccompAction::Allow, SeccompAction::Errno(*error));
            programs.push(SeccompFilter::new(rules, mismatch, refuse, arch));
        }
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        // What an earlier filter refuses stays refused; here it only must not be refused otherwise.
        for name in self.names.iter().chain(self.refused.keys()) {
            if let Some(number) = numbers.get(name) {
                rules.insert(*number, Vec::new());
            }
        }
        for (name, mask) in &self.masked {
            let masked = SeccompCmpOp::MaskedEq(*mask);
            let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, masked, 0);
            let rule = SeccompRule::new(vec![condition.expect("a condition")]);
            rules.insert(numbers[name], vec![rule.expect("a rule")]);
        }
        assert!(rules.len() > 100, "only {} calls are known", rules.len());
        let refuse = SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error() as u32);
        let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch);
        programs.push(filter);
        let programs = programs.into_iter().map(|filter| {
            let filter = filter.expect("a filter");
            filter.try_into().expect("a program")
        });
        Some(programs.collect())
    }
}

/// Starts a command that may make these calls only, nor get new privileges. None where this
/// machine's system calls are not known.
pub fn spawn(mut command: Command, allowed: &Allowed) -> Option<Child> {
    let programs = allowed.programs()?;
    // A filter binds the thread that takes it and what that thread starts, nobody else.
    let starter = std::thread::spawn(move || {
        for program in &programs {
            apply_filter(program).expect("a filter can be taken");
        }
        command.spawn().expect("the broker can be started")
    });
    Some(starter.join().expect("the starter ends"))
}
