# Virtual machines with a software RDMA card, for scripts/rdma/test.sh to source. What takes long is
# made once and kept in $state: the kernel, and an initial root file system with the card's modules.
#
# Every machine is known by the process id of its QEMU, in $state/run/NAME.pid, and ended by it.

state=${CARGO_TARGET_DIR:-$PWD/target}/rdma-machine
# Loaded in this order. The first computes the card's checksums, and nothing tells that it is needed;
# the last two are for machines that are two.
modules="crc32_generic ib_core ib_uverbs ib_cm iw_cm rdma_cm rdma_ucm udp_tunnel ip6_udp_tunnel rdma_rxe veth virtio_pci virtio_net"
tools="qemu-system-x86_64 busybox cpio depmod modprobe ip rdma etcd apt-get dpkg-deb dpkg-query"

# What base.sh exits with if this machine cannot have what it needs.
unavailable=3

say() { printf '%s: %s\n' "${title:-test-rdma}" "$*"; }

# What is missing on this machine, if anything.
lacking() {
    local tool
    [ "$(uname -m)" = x86_64 ] || { echo "the virtual machine is x86_64, this one is $(uname -m)"; return; }
    for tool in $tools; do
        [ -n "$(where "$tool")" ] || { echo "$tool is missing; as root on Debian scripts/needs.sh installs it"; return; }
    done
    # Bindings to the verbs are generated when the feature is built.
    [ -n "$(where cmake)" ] || { echo "cmake is missing; as root on Debian scripts/needs.sh installs it"; return; }
    libclang || { echo "libclang is missing; as root on Debian scripts/needs.sh installs libclang-dev"; return; }
    if [ -z "$(provider)" ] || [ -z "$(library librdmacm.so.1)" ]; then
        echo "the RDMA libraries are missing; as root on Debian scripts/needs.sh installs librdmacm1 and ibverbs-providers"
    fi
}

# prepare WITHOUT: makes what every machine begins with, or runs WITHOUT with the reason why it cannot be had.
prepare() {
    local reason code=0
    reason=$(lacking)
    [ -z "$reason" ] || "$1" "$reason"
    mkdir -p "$state/run"
    # What a session left that was ended hard: the numbers may be other processes' by now.
    rm -f "$state"/run/*.pid
    trap power_off_all EXIT
    scripts/rdma/base.sh || code=$?
    [ "$code" != "$unavailable" ] || "$1" "the parts of the virtual machine cannot be had"
    [ "$code" = 0 ] || exit "$code"
}

# Tools of administrators may lie outside of a user's path.
where() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" || true; }
library() { "$(where ldconfig)" -p | sed -n "s/^[[:space:]]*$1 (libc6,x86-64).* => //p" | head -n 1; }
provider() { find /usr/lib /lib -name 'librxe-rdmav*.so' 2>/dev/null | head -n 1; }

libclang() {
    compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null || compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null ||
        [ -n "${LIBCLANG_PATH:-}" ]
}

# copy FILE ROOT: a file under its own name, and the libraries that it names.
copy() {
    local file=$1 root=$2 library
    install -D -m 755 "$file" "$root$file"
    { ldd "$file" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
        [ -e "$root$library" ] || install -D -m 755 "$library" "$root$library"
    done
}

archive() { # archive ROOT FILE
    (cd "$1" && find . -mindepth 1 | cpio -o -H newc -R 0:0 --quiet) | gzip -1 >"$2.new"
    mv "$2.new" "$2"
}

# Makes $state/vmlinuz and $state/base.cpio.gz, unless they are there and of the same parts.
make_base() {
    local image key work root release module file
    image=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
    [ -n "$image" ] || { say "apt-cache knows no linux-image-amd64; run apt-get update"; return "$unavailable"; }
    key=$(
        echo "$image $modules"
        apt-cache policy "$image" | grep Candidate
        dpkg-query -W busybox-static rdma-core libibverbs1 librdmacm1 ibverbs-providers iproute2 libc6 2>/dev/null
        cat scripts/rdma/init scripts/rdma/machine.sh
    )
    key=$(sha256sum <<<"$key")
    if [ "$(cat "$state/base.key" 2>/dev/null)" = "$key" ] && [ -s "$state/base.cpio.gz" ]; then
        return 0
    fi
    say "making the base of the virtual machine from $image"
    work=$state/making
    rm -rf "$work" "$state/base.key"
    mkdir -p "$work/root"
    root=$work/root
    (cd "$work" && apt-get download -qq "$image") || return "$unavailable"
    dpkg-deb -x "$work"/*.deb "$work/kernel"
    # Newer packages have one place for modules only.
    [ -e "$work/kernel/lib" ] || ln -s usr/lib "$work/kernel/lib"
    release=$(ls "$work"/kernel/lib/modules)
    cp "$work/kernel/boot/vmlinuz-$release" "$state/vmlinuz"
    # The package brings no list of what needs what.
    "$(where depmod)" -b "$work/kernel" "$release"
    : >"$root/payload-modules"
    for module in $modules; do
        # Built into some kernels.
        if ! file=$("$(where modprobe)" -d "$work/kernel" -S "$release" --show-depends "$module"); then
            # Kernels that have no such module have its function.
            [ "$module" != crc32_generic ] || continue
            say "$image has no module $module"
            return "$unavailable"
        fi
        echo "$module" >>"$root/payload-modules"
        sed -n 's/^insmod \([^ ]*\).*/\1/p' <<<"$file" | while read -r file; do
            install -D -m 644 "$file" "$root/${file#"$work"/kernel/}"
        done
    done
    find "$root/lib/modules" -name '*.ko.xz' -exec xz -d {} +
    cp "$work/kernel/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$release"
    "$(where depmod)" -b "$root" "$release"

    mkdir -p "$root"/{bin,dev,proc,sys,tmp,etc/libibverbs.d}
    chmod 755 "$root"
    cp "$(where busybox)" "$root/bin/busybox"
    for file in $("$root/bin/busybox" --list); do
        # Busybox's own ip knows no cards.
        case $file in
        ip | busybox) ;;
        *) ln -sf busybox "$root/bin/$file" ;;
        esac
    done
    for file in ip rdma etcd; do
        copy "$(realpath "$(where "$file")")" "$root"
        install -D -m 755 "$(realpath "$(where "$file")")" "$root/usr/bin/$file"
    done
    # Loaded by name when a program starts, so no program tells of them.
    for file in librdmacm.so.1 libibverbs.so.1 libgcc_s.so.1; do
        copy "$(library "$file")" "$root"
    done
    copy "$(provider)" "$root"
    cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
    install -m 755 scripts/rdma/init "$root/init"
    archive "$root" "$state/base.cpio.gz"
    rm -rf "$work"
    choose_accelerator
    echo "$key" >"$state/base.key"
}

# The processor's own help where it works, which having its device does not tell: a kernel without
# anything to run ends at once then. Else QEMU emulates, some ten times slower.
choose_accelerator() {
    echo "tcg,thread=multi" >"$state/accelerator"
    [ -w /dev/kvm ] || return 0
    if timeout -k 1 10 qemu-system-x86_64 -M q35 -accel kvm -cpu max -m 512 -kernel "$state/vmlinuz" \
        -append "panic=-1 quiet" -display none -nodefaults -monitor none -no-reboot 2>/dev/null; then
        echo kvm >"$state/accelerator"
    fi
}

# make_payload TESTS BROKERS KERA DIR PROGRAM: $state/initrd.cpio.gz, the base and what is to be run: the tests of
# the transport, those of brokers, and PROGRAM, which these start as KERA; they work in DIR.
make_payload() {
    local root=$state/payload binary library
    rm -rf "$root"
    # As in a clone below /tmp.
    mkdir -p "$root/payload" "$root$4" "$root$(dirname "$3")" "$root/tmp/kept/there"
    strip --strip-debug -o "$root/payload/tests" "$1"
    strip --strip-debug -o "$root/payload/brokers" "$2"
    strip --strip-debug -o "$root$3" "$5"
    for binary in "$1" "$2" "$5"; do
        ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do
            install -D -m 755 "$library" "$root$library"
        done
    done
    # Tests find the program and a directory beside themselves, which here they are not.
    printf '#!/bin/sh\nexport KERA_BIN=%s KERA_TEST_DIR=%s\n' "$3" "$4" >"$root/payload/run"
    cat >>"$root/payload/run" <<'RUN'
# One machine runs all tests of the transport but those of two machines, one those of brokers; others
# those that they are told.
[ -d /tmp/kept/there ] || { echo "machine: what was put below /tmp is gone"; exit 1; }
case $1 in
all) exec /payload/tests --test-threads=1 --skip two:: ;;
brokers) exec /payload/brokers --test-threads=1 ;;
*) exec /payload/tests --test-threads=1 --nocapture "$1" ;;
esac
RUN
    pack_payload
}

# Makes $state/initrd.cpio.gz of the base and $state/payload, which is gone then.
pack_payload() {
    chmod -R 755 "$state/payload"
    archive "$state/payload" "$state/payload.cpio.gz"
    cat "$state/base.cpio.gz" "$state/payload.cpio.gz" >"$state/initrd.cpio.gz"
    rm -rf "$state/payload"
}

# start NAME SECONDS SETTINGS [QEMU OPTIONS]: starts a machine of $memory MiB, whose console is
# $state/run/NAME.log; $! is what to wait for, with QEMU's exit code or 124.
start() {
    local name=$1 seconds=$2 settings=$3
    shift 3
    mkdir -p "$state/run"
    rm -f "$state/run/$name.pid"
    : >"$state/run/$name.log"
    timeout -k 5 "$seconds" qemu-system-x86_64 -M q35 -accel "$(cat "$state/accelerator")" -cpu max \
        -smp 2 -m "${memory:-1536}" -kernel "$state/vmlinuz" -initrd "$state/initrd.cpio.gz" \
        -append "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr random.trust_cpu=on tsc=reliable nowatchdog $settings" \
        -display none -nodefaults -serial "file:$state/run/$name.log" -monitor none -no-reboot \
        -device isa-debug-exit,iobase=0xf4,iosize=0x4 -pidfile "$state/run/$name.pid" "$@" \
        2>"$state/run/$name.err" &
}

# Takes a machine's power away.
power_off() {
    local pid
    pid=$(cat "$state/run/$1.pid" 2>/dev/null) || return 0
    kill -KILL "$pid" 2>/dev/null || true
}

power_off_all() {
    local file
    for file in "$state"/run/*.pid; do
        [ -e "$file" ] || continue
        power_off "$(basename "$file" .pid)"
        rm -f "$file"
    done
}

# What a machine printed, without the console's own line ends.
console() { tr -d '\r' <"$state/run/$1.log"; }
