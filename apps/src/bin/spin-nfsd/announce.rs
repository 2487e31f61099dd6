use crate::export_spec::ExportSpec;
use crate::names::Names;
use crate::setup::Setup;
use spinrpc_nfs::server::exports::{Client, ExportOptions, Squash};

pub(crate) fn exports(setup: &Setup, names: &Names) -> Vec<String> {
    // All addresses are on the same fabric.
    let is_local = setup.listen.iter().all(|address| address.starts_with("shm:"));
    setup.exports.iter().map(|spec| export(spec, names, is_local)).collect()
}

fn export(spec: &ExportSpec, names: &Names, is_local: bool) -> String {
    let path = spec.path().unwrap_or_default();
    let what = &spec.what;
    let what = if what.to_string() == path { String::new() } else { format!(" ({what})") };
    let ExportOptions { read_only, clients, .. } = &spec.settings.options;
    let access = if *read_only { "read-only" } else { "read-write" };
    let as_whom = as_whom(&spec.settings.options);
    if clients.is_empty() {
        return format!(
            "export {path}{what} {access} to NO CLIENTS: add :client=ADDRESS, client=NETWORK/BITS, \
             client=NAME, client=local (for shm:) or client=any"
        );
    }
    format!("export {path}{what} {access} to {}; {as_whom}", to_whom(clients, names, is_local))
}

fn to_whom(clients: &[Client], names: &Names, is_local: bool) -> String {
    if clients.contains(&Client::Any) {
        return "EVERYONE".to_owned();
    }
    let show = |client: &Client| {
        let why = match (is_local, client) {
            (true, Client::Network { .. } | Client::Name(_)) => {
                " (NO ACCESS: hosts cannot use shm:)"
            }
            (false, Client::Local { .. }) => " (NO ACCESS: users of this host can only use shm:)",
            _ => "",
        };
        format!("{}{why}", names.show(client))
    };
    clients.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn as_whom(options: &ExportOptions) -> String {
    let (uid, gid) = options.anonymous;
    let squashed = match options.squash {
        Squash::Root => format!("root acts as {uid}:{gid}"),
        Squash::All => format!("all act as {uid}:{gid}"),
        Squash::None => "root acts as root".to_owned(),
    };
    let flavors: Vec<&str> = options.flavors.iter().map(|flavor| flavor.name()).collect();
    let machine = if options.machine_is_root { "; hosts of the realm act as root" } else { "" };
    format!("{squashed}{machine}; sec {}", flavors.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_at(text: &str, is_local: bool) -> String {
        export(&ExportSpec::directory(text).unwrap(), &Names::default(), is_local)
    }

    fn line(text: &str) -> String {
        line_at(text, false)
    }

    #[test]
    fn clients_that_cannot_come_by_the_listener_are_marked() {
        let count = |client: &str, is_local| {
            line_at(&format!("/srv:client={client}"), is_local).matches("NO ACCESS").count()
        };
        for (client, by_shm, by_rdma) in [
            ("192.0.2.7", 1, 0),
            ("2001:db8::/32", 1, 0),
            ("local:7", 0, 1),
            ("any", 0, 0),
            ("local:7,client=192.0.2.7", 1, 1),
        ] {
            assert_eq!((count(client, true), count(client, false)), (by_shm, by_rdma), "{client}");
        }
    }

    #[test]
    fn it_is_said_plainly_who_may_come_in_and_as_whom() {
        let shown = line("/srv:client=192.0.2.0/24,client=2001:db8::/32,ro");
        let expected = "export /srv read-only to 192.0.2.0/24, 2001:db8::/32; root acts as 65534:65534; \
                        sec sys";
        assert_eq!(shown, expected);
        let shown = line("/srv:client=any,squash=none,sec=sys,sec=none,path=/data");
        let expected =
            "export /data (/srv) read-write to EVERYONE; root acts as root; sec sys, none";
        assert_eq!(shown, expected);
        let shown = line("/srv:client=any,sec=krb5p:krb5i,machine=root");
        assert!(shown.ends_with("; hosts of the realm act as root; sec krb5p, krb5i"), "{shown}");
        let shown = line("/srv:client=backup.example.net");
        assert!(shown.contains("to backup.example.net (NO ACCESS: not looked up);"));
        assert!(line("/srv").contains("to NO CLIENTS") && line("/srv").contains("client="));
    }
}
