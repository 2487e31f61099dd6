# shellcheck shell=bash
# A realm of Kerberos: made on the host, where its tools are fast, and run in the guest. Sourced by scenario kerberos.
#
# realm_make DIRECTORY ENCTYPE: on the host. The names of the guest are server.spin.test, and one for each device.
realm_make() {
    local directory=$1 name
    rm -rf "$directory"
    mkdir -p "$directory"
    realm_configure "$directory" "$2"
    in_realm "$directory" kdb5_util create -s -r SPIN.TEST -P master
    for name in alice bob; do
        in_realm "$directory" kadmin.local -r SPIN.TEST -q "addprinc -pw $name $name"
    done
    for name in server siw rxe; do
        in_realm "$directory" kadmin.local -r SPIN.TEST -q "addprinc -randkey nfs/$name.spin.test"
        in_realm "$directory" kadmin.local -r SPIN.TEST -q "ktadd -k $directory/keytab nfs/$name.spin.test"
    done
}

# realm_configure DIRECTORY ENCTYPE: its files, for where it is now.
realm_configure() {
    cat >"$1/krb5.conf" <<END
[libdefaults]
 default_realm = SPIN.TEST
 permitted_enctypes = $2
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 clockskew = 15
[domain_realm]
 .spin.test = SPIN.TEST
[realms]
 SPIN.TEST = {
  kdc = 127.0.0.1:88
 }
END
    cat >"$1/kdc.conf" <<END
[realms]
 SPIN.TEST = {
  database_name = $1/principal
  key_stash_file = $1/stash
  kdc_listen = 127.0.0.1:88
  kdc_tcp_listen = ""
  supported_enctypes = $2:normal
  master_key_type = $2
 }
END
}

# in_realm DIRECTORY COMMAND...
in_realm() {
    local directory=$1
    shift
    KRB5_CONFIG=$directory/krb5.conf KRB5_KDC_PROFILE=$directory/kdc.conf "$@"
}

# realm_up DIRECTORY ENCTYPE: in the guest: names, users, keytab and the KDC.
realm_up() {
    local uid=1001 name
    cp -r "$1" /run/realm
    realm_configure /run/realm "$2"
    cp /run/realm/krb5.conf /etc/krb5.conf
    install -m 600 /run/realm/keytab /etc/krb5.keytab
    hostname server.spin.test
    printf '%s\n' '127.0.0.1 localhost' '10.8.0.1 siw.spin.test server.spin.test' '10.9.0.1 rxe.spin.test' >/etc/hosts
    sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf
    for name in alice bob carol; do
        echo "$name:x:$uid:$uid::/:/bin/sh" >>/etc/passwd
        echo "$name:x:$uid:" >>/etc/group
        uid=$((uid + 1))
    done
    in_realm /run/realm krb5kdc
    # What its package would configure: without it rpc.gssd looks elsewhere.
    printf '%s\n' '[general]' 'pipefs-directory=/run/rpc_pipefs' >/etc/nfs.conf
    mkdir -p /run/rpc_pipefs
    modules auth_rpcgss rpcsec_gss_krb5 cts
    mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
}

# as USER COMMAND...: su would want PAM.
as() {
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
}

# ticket USER LIFE: where rpc.gssd looks for it.
ticket() {
    echo "$1" | as "$1" kinit -l "$2" -c "FILE:/tmp/krb5cc_$(id -u "$1")" "$1"
}
