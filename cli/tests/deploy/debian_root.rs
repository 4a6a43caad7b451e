//! A small Debian in a folder: the essential packages of the machine that the test runs on, file by file, with the
//! package manager's own records of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::command::run;
use crate::common::{PATIENCE, machine};
use crate::package::LONGEST;

/// What the package manager of the machine knows of a package.
struct Installed {
    essential: bool,
    /// What it needs, each with what does as well.
    needs: Vec<Vec<String>>,
    provides: Vec<String>,
}

fn names(list: &str) -> Vec<Vec<String>> {
    let name = |one: &str| {
        let name = one.split(['(', ':']).next().unwrap_or_default().trim();
        (!name.is_empty()).then(|| name.to_owned())
    };
    let wanted = list
        .split(',')
        .map(|all| all.split('|').filter_map(name).collect());
    wanted.filter(|all: &Vec<String>| !all.is_empty()).collect()
}

fn installed() -> BTreeMap<String, Installed> {
    let mut query = Command::new("dpkg-query");
    query.args([
        "--show",
        "--showformat",
        "${Status}\t${Package}\t${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\n",
    ]);
    let text = run(query, b"", PATIENCE);
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [status, name, essential, needs, provides] = fields[..] else {
            panic!("{line}")
        };
        if status == "install ok installed" {
            let one = Installed {
                essential: essential == "yes",
                needs: names(needs),
                provides: names(provides).concat(),
            };
            found.insert(name.to_owned(), one);
        }
    }
    found
}

/// The essential packages and `more`, with all that they need.
fn chosen(all: &BTreeMap<String, Installed>, more: &[&str]) -> BTreeSet<String> {
    let essential = all.iter().filter(|(_, one)| one.essential);
    let mut open: Vec<String> = essential.map(|(name, _)| name.clone()).collect();
    open.extend(more.iter().map(|name| (*name).to_owned()));
    let mut chosen = BTreeSet::new();
    while let Some(name) = open.pop() {
        let Some(one) = all.get(&name).filter(|_| chosen.insert(name)) else {
            continue;
        };
        for alternatives in &one.needs {
            let known = alternatives.iter().find(|name| all.contains_key(*name));
            let provides = || {
                let gives = |one: &Installed| alternatives.iter().any(|a| one.provides.contains(a));
                all.iter().find(|(_, one)| gives(one)).map(|(name, _)| name)
            };
            open.extend(known.or_else(provides).cloned());
        }
    }
    chosen
}

/// A system in a folder, in which programs run as in a container: own processes, own network, own mounts.
pub struct DebianRoot {
    folder: PathBuf,
}

impl DebianRoot {
    /// With the essential packages and `more`. None, and said so, where it cannot be made.
    pub fn make(test: &str, folder: PathBuf, more: &[&str]) -> Option<Self> {
        for program in [
            "dpkg-query",
            "dpkg",
            "dpkg-deb",
            "unshare",
            "ip",
            "mount",
            "strip",
            "objdump",
        ] {
            crate::tools::wanted(test, program)?;
        }
        let tried = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "true"])
            .output();
        if !tried.is_ok_and(|output| output.status.success()) {
            machine::skip(
                test,
                "needs the right to make namespaces and to change the root",
            );
            return None;
        }
        let packages = chosen(&installed(), more);
        for part in [
            "usr/bin",
            "usr/sbin",
            "usr/lib",
            "usr/lib64",
            "var/lib/dpkg/info",
            "var/lib/dpkg/updates",
        ] {
            fs::create_dir_all(folder.join(part)).expect("a folder can be made");
        }
        for link in ["bin", "sbin", "lib", "lib64"] {
            if Path::new("/").join(link).is_symlink() {
                symlink(format!("usr/{link}"), folder.join(link)).expect("a link can be made");
            }
        }
        let mut copy = Command::new("bash");
        copy.args(["-euo", "pipefail", "-c"])
            .arg(COPY)
            .arg("bash")
            .arg(&folder)
            .args(&packages);
        run(copy, b"", LONGEST);
        let root = Self { folder };
        root.run("cp /usr/share/base-passwd/passwd.master /etc/passwd; cp /usr/share/base-passwd/group.master /etc/group; ldconfig");
        Some(root)
    }

    /// Where a path of the system is.
    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// Runs a script of the shell in it as root; it must succeed. What it wrote.
    pub fn run(&self, script: &str) -> String {
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--net",
                "--pid",
                "--ipc",
                "--fork",
                "--kill-child",
            ])
            .args(["bash", "-euc", ENTER, "bash"])
            .arg(&self.folder)
            .arg(script)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("LC_ALL", "C.UTF-8")
            .env("DEBIAN_FRONTEND", "noninteractive");
        run(command, b"", LONGEST)
    }
}

/// Copies packages with what the package manager knows of them, and no package more.
const COPY: &str = r#"
root=$1
shift
{
    dpkg-query --listfiles "$@" | grep -xv -e /. -e ''
    # Since /bin is a link these say where the files really are.
    dpkg-query --listfiles "$@" | sed -n 's|^/\(s\?bin\|lib\|lib64\)/|/usr/\1/|p'
} | grep -v -e '^/usr/share/doc/' -e '^/usr/share/man/' -e '^/usr/share/locale/' -e '^/usr/share/info/' |
    sed 's|^/\(s\?bin\|lib\|lib64\)$|/usr/\1|' |
    awk '!seen[$0]++' | while read -r path; do [ ! -e "$path" ] && [ ! -L "$path" ] || echo "$path"; done >"$root/.files"
tar --create --directory / --no-recursion --files-from "$root/.files" --file - 2>/dev/null |
    tar --extract --directory "$root" --keep-directory-symlink --file -
rm "$root/.files"
dpkg-query --status "$@" >"$root/var/lib/dpkg/status"
for package in "$@"; do
    for file in /var/lib/dpkg/info/"$package".* /var/lib/dpkg/info/"$package":*; do
        [ ! -e "$file" ] || cp "$file" "$root/var/lib/dpkg/info/"
    done
done
cp -r /var/lib/dpkg/alternatives "$root/var/lib/dpkg/"
mkdir -p "$root"/{proc,dev,tmp,run,var/tmp,etc,root}
chmod 1777 "$root/tmp"
"#;

/// Enters the system in `$1` and runs `$2` there.
const ENTER: &str = r#"
ip link set lo up
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
exec chroot "$1" /bin/sh -euc "$2"
"#;
