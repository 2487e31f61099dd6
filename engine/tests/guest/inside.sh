# shellcheck shell=bash
# Functions for use in the guest. Every bash there sources this file, by BASH_ENV, which run sets.

# modules NAME...: loads kernel modules, with the tools of the initial root file system: the host's
# own modules are of another kernel. Under systemd the root of the first process is ours, and init has put them there.
modules() {
    chroot /proc/1/root modprobe -a "$@"
}

# devices_up: siw0 (iWARP) on 10.8.0.1 and rxe0 (RoCEv2) on 10.9.0.1, both talking to themselves.
# Nothing of rxe0 can be captured then, since it bypasses the network's layers; use pair for that.
devices_up() {
    modules siw rdma_rxe rdma_ucm ib_uverbs dummy crc32_generic
    siw_up
    rxe_up
}

# siw takes its GID from the MAC address, and lo has none: with a GID of zeros, which is no GID,
# rdma_resolve_addr says ENOENT. The address is not 127.0.0.1, which rdma_cm takes for "any".
siw_up() {
    ip link set lo address 02:00:00:00:00:01 &&
        ip address add 10.8.0.1/24 dev lo &&
        rdma link add siw0 type siw netdev lo
}

# rxe does not work on lo.
rxe_up() {
    ip link add roce type dummy &&
        ip address add 10.9.0.1/24 dev roce &&
        ip link set roce up &&
        rdma link add rxe0 type rxe netdev roce
}

# address_of siw|rxe: where the device listens in a guest of its own.
address_of() {
    case $1 in siw) echo 10.8.0.1 ;; rxe) echo 10.9.0.1 ;; *) return 2 ;; esac
}

# wire_up siw|rxe ADDRESS/BITS [0|1]: this guest's end of a pair's wire, with the device on it. One for each wire at a
# time, since rdma_cm finds a device by its address: wire_down comes between.
wire_up() {
    local wire=${3:-0}
    modules virtio_net siw rdma_rxe rdma_ucm ib_uverbs crc32_generic
    ip address replace "$2" dev "eth$wire"
    ip link set "eth$wire" up
    rdma link add "$1$wire" type "$1" netdev "eth$wire"
}

# wire_down siw|rxe [0|1]
wire_down() {
    rdma link delete "$1${2:-0}"
}

# wait_for SECONDS COMMAND...: until the command succeeds; fails if it does not in time.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        if [ $SECONDS -ge $deadline ]; then
            echo "guest: not within time: $*" >&2
            return 1
        fi
        sleep 0.05
    done
}

# listening PORT: whether a process, or the kernel, listens there, by rdma_cm or at a socket.
listening() {
    rdma resource show cm_id | grep -q "state LISTEN .*:$1 " || ss -Htln "sport = :$1" | grep -q .
}

# resources: what verbs objects there are on siw0 and rxe0, one line each. At rest siw0 has none, and
# rxe0 the protection domain, completion queue and queue pair of the kernel's management agent.
resources() {
    rdma resource show | sed -n 's/^[0-9]*: \(siw0\|rxe0\):/\1:/p'
}

# kernel_mark and kernel_complaints: what the kernel has warned of since the mark. That a dummy
# device has no speed is nothing to complain of, nor that a busy host kept the guest waiting (for an interrupt, a sample, a work
# item, or a task with a deadline), nor that siw was built here.
kernel_mark() {
    dmesg --clear
}

kernel_complaints() {
    dmesg --level emerg,alert,crit,err,warn | grep -v -e 'speed is unknown, defaulting to' \
        -e 'hrtimer: interrupt took' -e 'perf: interrupt took too long' -e 'workqueue: .* hogged CPU for' \
        -e 'sched: DL replenish lagged' -e 'clocksource: Long readout interval' -e 'siw: loading out-of-tree module taints kernel' || true
}

# pair_enter: joins the directory that both guests of a pair see. Called by pair.
pair_enter() {
    modules 9p
    mkdir -p /pair
    mount -t 9p -o trans=virtio,version=9p2000.L pair /pair
}

# tell NAME and await NAME [SECONDS]: how the two guests of a pair wait for each other.
tell() {
    touch "/pair/$1"
}

await() {
    wait_for "${2:-180}" test -e "/pair/$1"
}

# rpcbind_up [OPTION]: it runs as a user of its own, which its package makes on the host, if it is
# installed there.
rpcbind_up() {
    id _rpc >/dev/null 2>&1 || echo '_rpc:x:107:65534::/run/rpcbind:/usr/sbin/nologin' >>/etc/passwd
    mkdir -p /run/rpcbind
    rpcbind "$@"
}

# nfsd_up: the kernel's NFS server, on RDMA port 20049 of every device and TCP port 2049.
# Exports the tmpfs /run/export, which is the root for version 4. NFSD_LEASE, in seconds, is for tests of delegations: there is no
# version 3 then, whose locks have a grace period of their own (50 s), in which the server delegates nothing.
nfsd_up() {
    modules rpcrdma nfsd
    mkdir -p /run/export /var/lib/nfs
    mount -t tmpfs export /run/export
    chmod 777 /run/export
    # The server's state must not be on the overlay, whose file system knows no leases.
    mount -t tmpfs state /var/lib/nfs
    mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/sm
    touch /var/lib/nfs/etab /var/lib/nfs/rmtab
    mount -t nfsd nfsd /proc/fs/nfsd
    echo '/run/export *(rw,no_root_squash,insecure,no_subtree_check,fsid=0)' >/etc/exports
    rpcbind_up -w
    exportfs -ar
    rpc.mountd -p 20048
    [ -z "${NFSD_LEASE-}" ] || echo "$NFSD_LEASE" >/proc/fs/nfsd/nfsv4leasetime
    rpc.nfsd --rdma=20049 ${NFSD_LEASE:+--no-nfs-version=3} 4
    grace_end
}

# Version 4 opens nothing before the grace period is over, else for 90 s.
grace_end() {
    echo Y >/proc/fs/nfsd/v4_end_grace
}

# nfs_mount ADDRESS VERSION DIRECTORY [OPTIONS]: over RDMA, by the kernel's client.
nfs_mount() {
    local options=rdma,port=20049,vers=$2 path=/
    modules rpcrdma nfs nfsv3 nfsv4
    mkdir -p "$3"
    if [ "$2" = 3 ]; then
        options+=,nolock,mountport=20048,mountproto=tcp
        path=/run/export
    fi
    mount.nfs "$1:$path" "$3" -o "$options${4:+,$4}"
}
