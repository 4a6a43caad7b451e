#!/usr/bin/env bash
# package.sh PROGRAM FOLDER: makes of a built program what is given to users, and leaves it in FOLDER:
#
#   kera_VERSION_ARCHITECTURE.deb          a package for Debian and what is made of it
#   kera-VERSION-linux-ARCHITECTURE.tar.gz the same files for other systems
#   kera-VERSION.cdx.json                  the bill of materials, CycloneDX
#   SHA256SUMS                             of all of them
#
# Two runs over one commit and one program give the same bytes. DEBFULLNAME and DEBEMAIL say who maintains the package;
# KERA_PACKAGE_LEVEL (9) how hard it is compressed.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'package: %s\n' "$*" >&2
    exit 1
}
[ $# = 2 ] || fail "usage: scripts/package.sh PROGRAM FOLDER"
[ -x "$1" ] || fail "$1 is no program; make dist builds one"
for tool in dpkg-deb objdump strip python3 git gzip; do
    command -v "$tool" >/dev/null || fail "$tool is missing; on Debian: apt-get install binutils dpkg git gzip python3"
done
mkdir -p "$2"
program=$(realpath "$1")
to=$(realpath "$2")
level=${KERA_PACKAGE_LEVEL:-9}

# A build that no tag names comes before the version that it will be.
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
if ! git tag --points-at HEAD | grep -qx "v$version"; then
    version+="~git$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d.%H%M).$(git rev-parse --short=10 HEAD)"
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-$(git log -1 --format=%an)} <${DEBEMAIL:-$(git log -1 --format=%ae)}>"

work=$(mktemp -d "$to/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree
doc=$tree/usr/share/doc/kera
umask 022
install -D -m 755 "$program" "$tree/usr/bin/kera"
strip --strip-debug "$tree/usr/bin/kera"

# What it links is what the package depends on; libraries for RDMA are looked for when the program starts.
needed=$(objdump -p "$tree/usr/bin/kera" | awk '$1 == "NEEDED" { print $2 }')
for library in $needed; do
    case $library in
    libc.so.6 | libm.so.6 | libgcc_s.so.1 | ld-linux-*.so.*) ;;
    *) fail "the program needs $library: say in deploy/debian/control.in which package has it, and here" ;;
    esac
done
glibc=$(objdump -T "$tree/usr/bin/kera" | grep -o 'GLIBC_[0-9][0-9.]*' | cut -d _ -f 2 | sort -uV | tail -n 1)

install -D -m 644 deploy/systemd/kera.service "$tree/usr/lib/systemd/system/kera.service"
install -D -m 644 deploy/systemd/kera.sysusers "$tree/usr/lib/sysusers.d/kera.conf"
install -D -m 644 deploy/systemd/kera.toml "$tree/etc/kera/kera.toml"
for name in cluster.conf cluster.toml member.env etcd.default secured.toml; do
    install -D -m 644 "deploy/systemd/$name" "$doc/examples/$name"
done
for name in alerts.yaml dashboard.json; do
    install -D -m 644 "deploy/monitoring/$name" "$doc/examples/$name"
done
kera() { env -i PATH="$PATH" HOME=/ "$program" "$@"; }
kera man --all "$tree/usr/share/man"
completions() { # SHELL FILE
    install -d "$(dirname "$tree/$2")"
    kera completions "$1" >"$tree/$2"
}
completions bash usr/share/bash-completion/completions/kera
completions zsh usr/share/zsh/vendor-completions/_kera
completions fish usr/share/fish/vendor_completions.d/kera.fish
install -m 644 deploy/debian/copyright "$doc/copyright"
install -D -m 644 deploy/debian/lintian-overrides "$tree/usr/share/lintian/overrides/kera"
install -m 644 CHANGELOG.md "$doc/changelog"
scripts/materials.py notices >"$doc/third-party.txt"
cat >"$doc/changelog.Debian" <<TEXT
kera ($version-1) unstable; urgency=medium

  * What is new is in changelog.gz.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
TEXT
gzip -9n "$doc/changelog" "$doc/changelog.Debian" "$doc/third-party.txt"
find "$tree/usr/share/man" -type f -exec gzip -9n {} +

control=$tree/DEBIAN
install -d "$control"
sed -e "s/@VERSION@/$version-1/" -e "s/@ARCHITECTURE@/$architecture/" -e "s|@MAINTAINER@|$maintainer|" \
    -e "s/@SIZE@/$(du -sk --apparent-size "$tree" | cut -f 1)/" -e "s/@GLIBC@/$glibc/" \
    deploy/debian/control.in >"$control/control"
install -m 755 deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$control/"
echo /etc/kera/kera.toml >"$control/conffiles"
(cd "$tree" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$control/md5sums"
find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

# What an earlier run left is not given away with this one.
rm -f "$to"/kera_*.deb "$to"/kera-*.tar.gz "$to"/kera-*.cdx.json "$to"/kera_client-*.whl "$to/SHA256SUMS"
package=$to/kera_$version-1_$architecture.deb
dpkg-deb --root-owner-group -Zgzip -z"$level" --build "$tree" "$package" >/dev/null
name=kera-$version-linux-$architecture
tar --create --directory "$tree" --exclude ./DEBIAN --transform "s|^\.|$name|" --sort name --owner 0 --group 0 \
    --numeric-owner . | gzip -n"$level" >"$to/$name.tar.gz"
scripts/materials.py sbom "$version" >"$to/kera-$version.cdx.json"
(cd "$to" && sha256sum kera_*.deb kera-*.tar.gz kera-*.cdx.json >SHA256SUMS)
echo "$package"
