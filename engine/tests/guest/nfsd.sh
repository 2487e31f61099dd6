# shellcheck shell=bash
# The NFS server under test, and mounts of it by the kernel's client. Sourced by the scenarios nfsd*.
#
# SPINRPC_NFSD=kernel tests the kernel's server instead of ours. What fails there as well is the test's
# own fault, or the client's.
nfsd=${SPINRPC_NFSD:-spin}

# in_nfs_guest OPTIONS...: as in_guest.
in_nfs_guest() {
    SPINRPC_NFSD=$nfsd in_guest --env SPINRPC_NFSD "$@"
}

# needs COMMAND=PACKAGE...: programs of the host that the guest is to have.
needs() {
    # shellcheck source=common.sh
    (. "${guest:?}/common.sh" && need "$@")
}

# server_up: a server of four directories, with MOUNT at TCP port 20048 and known to rpcbind:
# /run/export, where root may do as it likes; /run/squashed, where root is nobody; /run/readonly; and
# /run/private, which is not for us. The first is a file system of its own.
server_up() {
    mkdir -p /run/export /run/squashed /run/readonly /run/private
    chmod 777 /run/squashed /run/readonly
    case $nfsd in
        kernel)
            nfsd_up
            kernel_exports
            ;;
        *)
            mount -t tmpfs export /run/export
            chmod 777 /run/export
            rpcbind_up -w
            server_start
            ;;
    esac
}

kernel_exports() {
    local options=insecure,no_subtree_check
    exportfs -o "rw,root_squash,$options,fsid=1" '*:/run/squashed'
    exportfs -o "ro,$options,fsid=2" '*:/run/readonly'
    exportfs -o "rw,$options,fsid=3" '192.0.2.0/24:/run/private'
}

# server_start: after server_end, too. Our process is $server. It does not get what a scenario holds
# open: 7 to 9 are files of its mount.
server_start() {
    case $nfsd in
        kernel) rpc.nfsd --rdma=20049 4 ;;
        *)
            serve 20049 "${bin:?}/spin-nfsd" --listen rdma://0.0.0.0:20049 --mount 20048 \
                --state /run/nfsd-state \
                --export /run/export:client=any,squash=none \
                --export /run/squashed:client=any,squash=root \
                --export /run/readonly:client=any,ro \
                --export /run/private:client=192.0.2.0/24 7<&- 8<&- 9<&-
            ;;
    esac
}

# server_end [SIGNAL]: as its user would end it, or otherwise.
server_end() {
    case $nfsd in
        kernel) rpc.nfsd 0 ;;
        *)
            kill "-${1:-TERM}" "${server:?}"
            wait_for 120 ended "$server"
            wait "$server" || [ "${1:-TERM}" != TERM ]
            ;;
    esac
}

# mount_at ADDRESS DIRECTORY [OPTIONS [EXPORT]]: without locks, by the port of MOUNT.
mount_at() {
    modules rpcrdma nfs nfsv3
    mkdir -p "$2"
    mount.nfs "$1:${4:-/run/export}" "$2" -o "$nfs_options,mountport=20048,mountproto=tcp${3:+,$3}"
}
nfs_options=rdma,port=20049,vers=3,nolock

# inside COMMAND...: with the mounted directory $at as the current one.
inside() {
    cd "${at:?}" || return
    "$@"
    cd /
}

# remounted: $at, of $address, so that nothing of it is known here any more.
remounted() {
    cd /
    umount "$at"
    mount_at "${address:?}" "$at"
    cd "$at" || return
}

# no_files: nothing is in the export.
no_files() {
    ls -A /run/export
    [ -z "$(ls -A /run/export)" ]
}

# same_file FILE...: they have the same checksum.
same_file() {
    sha256sum "$@"
    [ "$(sha256sum "$@" | cut -d' ' -f1 | sort -u | wc -l)" = 1 ]
}
