# shellcheck shell=bash
# What the scripts on the host side share: where the cache is, and how one ends. Sourced by kit,
# run, pair, suite, tshark and .ci/arm.

# Kits of all kernels and harness versions live here; nothing is written elsewhere outside /tmp.
# shellcheck disable=SC2034 # read by those who source this
cache=${SPINRPC_GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spinrpc-guest}

# The status of a guest that never finished, and of a harness that cannot start one.
readonly BROKEN=125

# Architecture of the guest, in Debian's words. For another one than the host's, packages come from lists of their own.
arch=${SPINRPC_GUEST_ARCH:-amd64}
case $arch in amd64 | arm64) ;; *) echo "guest: SPINRPC_GUEST_ARCH is amd64 or arm64, and not $arch" >&2 && exit $BROKEN ;; esac

# What apt says is read.
export LC_ALL=C

fail() {
    echo "guest: $*" >&2
    exit $BROKEN
}

# usage FILE: prints the comment at the head of a script, which is its manual.
usage() {
    sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$1"
}

# ends_with FUNCTION: calls it however the script ends: EXIT alone would leave the status to chance. A
# shell runs a trap only when the command in its foreground has ended, so that commands which take
# long are started by setpriv --pdeathsig or in the background.
ends_with() {
    # shellcheck disable=SC2064 # the name, now
    trap "$1" EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# as_root COMMAND...: fails without a question where that is not allowed.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# need COMMAND=PACKAGE...: installs the Debian packages of the commands that are missing, one process at a time.
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    local arch=amd64
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "guest: installing ${missing[*]}" >&2
    mkdir -p "$cache"
    (
        flock 9
        # Of an installation that was killed in its middle, which leaves apt unusable.
        as_root dpkg --configure -a >&2 || true
        [ -z "$(dpkg --audit)" ] || with_lists as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qqy --fix-broken
        with_lists as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -qqy --no-install-recommends "${missing[@]}"
    ) 9>"$cache/apt.lock" || fail "install these Debian packages first: ${missing[*]}"
}

# with_lists COMMAND...: one of apt's, a second time with new lists of packages where the ones that
# are there lack it or are out of date. Only then is its complaint of interest.
with_lists() {
    "$@" >/dev/null 2>&1 && return
    update_lists || true
    "$@" >/dev/null
}

# lists: the directory of apt's lists of packages of $arch.
lists() {
    if [ "$arch" = amd64 ]; then echo /var/lib/apt/lists; else echo "$cache/apt-$arch/lists"; fi
}

# update_lists: fetches them again. Root is needed for the host's only.
update_lists() {
    if [ "$arch" = amd64 ]; then
        as_root apt-get update -qq >&2
    else
        foreign_apt apt-get update -qq >&2
    fi
}

# of_arch COMMAND...: one of apt's, which reads packages of $arch.
of_arch() {
    if [ "$arch" = amd64 ]; then
        "$@"
    else
        [ -d "$(lists)/partial" ] || update_lists || return
        foreign_apt "$@"
    fi
}

# foreign_apt COMMAND...: with the host's sources, as if nothing was installed.
foreign_apt() {
    local own=$cache/apt-$arch
    mkdir -p "$own/cache"
    : >"$own/status"
    cat >"$own/conf.$$" <<END
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Sandbox::User "root";
Acquire::Retries "5";
Dir::State "$own";
Dir::State::status "$own/status";
Dir::Cache "$own/cache";
END
    mv "$own/conf.$$" "$own/conf"
    APT_CONFIG=$own/conf "$@"
}

# closure PACKAGE...: the packages and the libraries they need, but for those of the C library,
# which every host has for its own programs. Asking apt spares us the names, which change between releases.
closure() {
    local known=" $* " todo=("$@") found package
    while [ ${#todo[@]} -gt 0 ]; do
        found=$(of_arch apt-cache depends "${todo[@]}" | sed -n 's/^ *|\?\(Pre\)\?Depends: \(lib[^ ]*\)$/\2/p' | sort -u) || return
        todo=()
        for package in $found; do
            case "$package $known" in
                libc6\ * | libgcc-s1\ * | libcrypt1\ * | *" $package "*) ;;
                *) todo+=("$package") known+="$package " ;;
            esac
        done
    done
    echo "$known"
}

# download DIRECTORY PACKAGE...: as files .deb. PACKAGE may be NAME=VERSION.
download() {
    local into=$1
    shift
    mkdir -p "$into"
    # The sandbox user of apt cannot write to a directory of root's; without one nothing is lost,
    # since apt checks signatures by itself.
    (cd "$into" && with_lists of_arch apt-get download -qq -o APT::Sandbox::User=root "$@") ||
        fail "apt-get cannot download these packages: $*"
}

# unpack DIRECTORY PACKAGE...: their files, without installing anything.
unpack() {
    local into=$1 debs=$1.debs deb
    mkdir -p "$into"
    download "$debs" "${@:2}"
    for deb in "$debs"/*.deb; do
        dpkg -x "$deb" "$into"
    done
    rm -rf "$debs"
}

# merge_usr TREE: as on a host, where /bin is a link to usr/bin.
merge_usr() {
    local directory
    for directory in bin sbin lib lib64; do
        [ -d "$1/$directory" ] || continue
        mkdir -p "$1/usr/$directory"
        cp -a "$1/$directory/." "$1/usr/$directory/"
        rm -r "${1:?}/$directory"
    done
}
