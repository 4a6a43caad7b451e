//! The Debian package, made of the program of this build and installed in a small Debian where nothing else is: its
//! broker runs there as it comes, and what the package leaves behind is what it should.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::common::command::run;
use crate::common::{PATIENCE, home, kera, scratch};
use crate::debian_root::DebianRoot;
use crate::tools::find;
use crate::{read, repository};

/// For what has much to compress, or to copy.
pub const LONGEST: Duration = PATIENCE.saturating_mul(5);

/// The package that `KERA_PACKAGE` names, or one of the program of this build. It lies beside what belongs to it.
fn package() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        if let Some(path) = std::env::var_os("KERA_PACKAGE") {
            return path.into();
        }
        let mut make = Command::new(repository("scripts/package.sh"));
        make.arg(kera().get_program())
            .arg(scratch().join("package"))
            .env("KERA_PACKAGE_LEVEL", "1");
        run(make, b"", LONGEST).trim().into()
    })
}

/// What `kera` says of itself in the system: every command, as the names of pages.
fn commands() -> BTreeSet<String> {
    fn below(words: &[String], found: &mut BTreeSet<String>) {
        let mut help = kera();
        help.args(words).arg("--help");
        let text = run(help, b"", PATIENCE);
        found.insert(
            ["kera".to_owned()]
                .iter()
                .chain(words)
                .cloned()
                .collect::<Vec<_>>()
                .join("-"),
        );
        let list = text.split("\nCommands:\n").nth(1).unwrap_or_default();
        let list = list.split("\n\n").next().unwrap_or_default();
        for line in list
            .lines()
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        {
            let name = line.split_whitespace().next().expect("a name");
            if name != "help" {
                below(&[words, &[name.to_owned()]].concat(), found);
            }
        }
    }
    let mut found = BTreeSet::new();
    below(&[], &mut found);
    found
}

/// A broker as it comes and goes: with the configuration of the package, run by its user.
const BROKER: &str = r#"
rm -f /tmp/said
mkfifo /tmp/said
serve() {
    setpriv --reuid kera --regid kera --init-groups --no-new-privs \
        kera serve --config /etc/kera/kera.toml >/tmp/said 2>>/tmp/log &
    broker=$!
    exec 3</tmp/said
    read -r line <&3 || { cat /tmp/log; exit 1; }
}
stop() {
    kill -TERM $broker
    wait $broker
    exec 3<&-
}
"#;

/// Two runs of it; what it stored in the first is there in the second.
const FIRST_RUNS: &str = "
serve
kera stream create clicks --lanes 2 >/dev/null
seq 1000 | kera produce clicks --quiet
stop
serve
kera consume clicks | sort -n | cksum
seq 1000 | cksum
stop
stat -c '%U:%G %a' /var/lib/kera /etc/kera/kera.toml
";

#[test]
fn the_package_brings_a_broker_to_an_empty_system_and_leaves_its_records() {
    const NAME: &str = "the_package_brings_a_broker_to_an_empty_system_and_leaves_its_records";
    let home = home();
    let Some(root) = DebianRoot::make(NAME, home.path().join("root"), &["adduser", "libgcc-s1"])
    else {
        return;
    };
    let package = package();
    fs::copy(package, root.at("/tmp/kera.deb")).expect("the package can be copied");
    let said = root.run("dpkg --install /tmp/kera.deb");
    assert!(said.contains("systemctl enable --now kera"), "{said}");
    // All of it is as the package has it.
    assert_eq!(root.run("dpkg --verify kera"), "");
    let status = root.run("dpkg-query --show --showformat '${Status}' kera");
    assert_eq!(status, "install ok installed");

    let told = root.run(&format!("{BROKER}{FIRST_RUNS}"));
    let told: Vec<&str> = told.lines().collect();
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!(told[0], told[1], "records are missing");
    assert_eq!(told[2..], ["kera:kera 750", "root:root 644"]);

    let listed = root.run("dpkg --listfiles kera");
    let listed: BTreeSet<&str> = listed.lines().collect();
    for path in [
        "/usr/bin/kera",
        "/usr/lib/systemd/system/kera.service",
        "/usr/lib/sysusers.d/kera.conf",
        "/etc/kera/kera.toml",
        "/usr/share/man/man5/kera.toml.5.gz",
        "/usr/share/doc/kera/copyright",
        "/usr/share/doc/kera/third-party.txt.gz",
        "/usr/share/doc/kera/changelog.Debian.gz",
        "/usr/share/bash-completion/completions/kera",
        "/usr/share/zsh/vendor-completions/_kera",
        "/usr/share/fish/vendor_completions.d/kera.fish",
    ] {
        assert!(listed.contains(path), "{path} is not in {listed:?}");
    }
    let pages: BTreeSet<String> = listed
        .iter()
        .filter_map(|path| {
            path.strip_prefix("/usr/share/man/man1/")?
                .strip_suffix(".1.gz")
        })
        .map(str::to_owned)
        .collect();
    assert_eq!(pages, commands(), "a page for each command");
    manual_pages_are_understood(&root, &pages);
    completions_complete(&root);
    the_container_file_takes_what_there_is(&root);

    // What the administrator changed stays, and so do records: over another installation, removal, and purge.
    root.run("echo '# ours' >>/etc/kera/kera.toml; dpkg --install /tmp/kera.deb");
    assert!(
        fs::read_to_string(root.at("/etc/kera/kera.toml"))
            .expect("a file")
            .ends_with("# ours\n")
    );
    root.run("dpkg --remove kera");
    assert!(!root.at("/usr/bin/kera").exists());
    assert!(root.at("/etc/kera/kera.toml").exists() && root.at("/var/lib/kera").exists());
    let said = root.run("dpkg --purge kera");
    assert!(
        said.contains("the records in /var/lib/kera are kept"),
        "{said}"
    );
    assert!(!root.at("/etc/kera").exists());
    assert!(
        fs::read_dir(root.at("/var/lib/kera"))
            .expect("a folder")
            .count()
            > 0
    );
    // They are there for whoever installs it again; without records nothing is left.
    root.run("dpkg --install /tmp/kera.deb");
    let told = root.run(&format!("{BROKER}serve; kera consume clicks | wc -l; stop"));
    assert_eq!(told, "1000\n");
    let said = root.run("rm -r /var/lib/kera; mkdir /var/lib/kera; dpkg --purge kera");
    assert!(
        !said.contains("are kept") && !root.at("/var/lib/kera").exists(),
        "{said}"
    );
}

fn manual_pages_are_understood(root: &DebianRoot, pages: &BTreeSet<String>) {
    let page = |name: &str| root.at(&format!("/usr/share/man/{name}.gz"));
    let text = |path: &Path| {
        let mut unpack = Command::new("gzip");
        unpack.arg("-dc").arg(path);
        run(unpack, b"", PATIENCE)
    };
    let create = text(&page("man1/kera-stream-create.1"));
    assert!(
        create.contains(".SH EXAMPLES\n.nf\n") && create.contains("\\-\\-lanes"),
        "{create}"
    );
    if find("man").is_none() || find("groff").is_none() {
        return;
    }
    let mut all = Command::new("man");
    all.args(["--warnings=all", "--encoding=UTF-8", "--local-file"])
        .args(pages.iter().map(|name| page(&format!("man1/{name}.1"))))
        .arg(page("man5/kera.toml.5"))
        .env("LC_ALL", "C.UTF-8")
        .env("MANWIDTH", "80");
    let shown = crate::tools::run(all);
    // What the formatter warns of it says on standard error.
    assert!(
        shown.good && shown.said == shown.stdout,
        "{}",
        &shown.said[shown.stdout.len()..]
    );
    assert!(
        shown.stdout.contains("memory.pool") && shown.stdout.contains("kera stream create clicks")
    );
}

fn completions_complete(root: &DebianRoot) {
    let told = root.run(
        "bash -ec '. /usr/share/bash-completion/completions/kera
COMP_WORDS=(kera stream cre); COMP_CWORD=2; _kera kera cre stream
echo \"${COMPREPLY[@]}\"'",
    );
    assert_eq!(told, "create\n");
    let zsh = fs::read_to_string(root.at("/usr/share/zsh/vendor-completions/_kera"));
    assert!(zsh.expect("a file").starts_with("#compdef kera\n"));
}

/// What `COPY --from=unpacked /image/...` names is in the package, or made where it is unpacked.
fn the_container_file_takes_what_there_is(root: &DebianRoot) {
    let file = read("deploy/container/Containerfile");
    let copies = file
        .lines()
        .filter(|line| line.starts_with("COPY --from=unpacked"));
    let paths: Vec<&str> = copies
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.strip_prefix("/image"))
        .collect();
    assert!(paths.contains(&"/usr/bin/kera"), "{paths:?}");
    for path in paths {
        assert!(root.at(path).exists(), "there is no {path}");
    }
}

#[test]
fn sums_and_a_bill_of_materials_lie_beside_the_package() {
    const NAME: &str = "sums_and_a_bill_of_materials_lie_beside_the_package";
    for program in ["dpkg-deb", "strip", "objdump", "python3"] {
        if crate::tools::wanted(NAME, program).is_none() {
            return;
        }
    }
    let package = package();
    let folder = package.parent().expect("it is in a folder");
    let mut check = Command::new("sha256sum");
    check
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(folder);
    let checked = run(check, b"", PATIENCE);
    for end in [".deb: OK", ".tar.gz: OK", ".cdx.json: OK"] {
        assert_eq!(
            checked.lines().filter(|line| line.ends_with(end)).count(),
            1,
            "{checked}"
        );
    }
    let field = |name: &str| {
        let mut query = Command::new("dpkg-deb");
        query.arg("--field").arg(package).arg(name);
        run(query, b"", PATIENCE).trim().to_owned()
    };
    assert!(
        field("Depends").starts_with("libc6 (>= 2."),
        "{}",
        field("Depends")
    );
    assert!(field("Version").starts_with(env!("CARGO_PKG_VERSION")));

    let bill = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path());
    let bill = bill
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .last();
    let bill = fs::read_to_string(bill.expect("a bill")).expect("a file");
    let bill: Value = serde_json::from_str(&bill).expect("JSON");
    assert_eq!(
        (&bill["bomFormat"], &bill["specVersion"]),
        (&"CycloneDX".into(), &"1.5".into())
    );
    assert_eq!(bill["metadata"]["component"]["name"], "kera");
    let components = bill["components"].as_array().expect("a list");
    let known: BTreeSet<&str> = components
        .iter()
        .chain([&bill["metadata"]["component"]])
        .map(|one| one["bom-ref"].as_str().expect("a name"))
        .collect();
    assert_eq!(
        known.len(),
        components.len() + 1,
        "a component is named twice"
    );
    let lock: toml::Table = read("Cargo.lock").parse().expect("TOML");
    let locked = lock["package"].as_array().expect("a list");
    let mut foreign = 0;
    for one in components {
        let (name, version) = (one["name"].as_str().expect("a name"), &one["version"]);
        assert!(
            one["licenses"][0]["expression"].is_string(),
            "{name} has no licence"
        );
        if name.starts_with("kera-")
            || one["purl"]
                .as_str()
                .is_some_and(|purl| purl.contains(":npm/"))
        {
            continue;
        }
        foreign += 1;
        let hash = locked.iter().find(|crate_| {
            crate_["name"].as_str() == Some(name) && crate_["version"].as_str() == version.as_str()
        });
        let hash = hash.and_then(|one| one["checksum"].as_str());
        assert!(
            hash.is_some() && one["hashes"][0]["content"].as_str() == hash,
            "{name}"
        );
    }
    assert!(foreign > 100, "only {foreign} crates");
    // What is linked in is there, what only tests need is not.
    let has = |name: &str| components.iter().any(|one| one["name"] == name);
    for name in ["tokio", "kera-broker", "rdma-mummy-sys", "uplot"] {
        assert!(has(name), "{name} is not in it");
    }
    for name in ["proptest", "rdkafka", "kera-testkit", "criterion"] {
        assert!(!has(name), "{name} is in it");
    }
    for edge in bill["dependencies"].as_array().expect("a list") {
        let ends = edge["dependsOn"].as_array().expect("a list").iter();
        for end in ends.chain([&edge["ref"]]) {
            assert!(known.contains(end.as_str().expect("a name")), "{end}");
        }
    }
}
