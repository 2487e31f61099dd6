use crate::export_spec::ExportSpec;
use crate::names::Names;
use spinrpc_nfs::server::exports::{Client, ExportOptions, Squash};

pub(crate) fn exports(specs: &[ExportSpec], names: &Names) -> Vec<String> {
    specs.iter().map(|spec| export(spec, names)).collect()
}

fn export(spec: &ExportSpec, names: &Names) -> String {
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
    format!("export {path}{what} {access} to {}; {as_whom}", to_whom(clients, names))
}

fn to_whom(clients: &[Client], names: &Names) -> String {
    if clients.contains(&Client::Any) {
        return "EVERYONE".to_owned();
    }
    clients.iter().map(|client| names.show(client)).collect::<Vec<_>>().join(", ")
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

    fn line(text: &str) -> String {
        export(&ExportSpec::directory(text).unwrap(), &Names::default())
    }

    #[test]
    fn it_is_said_plainly_who_may_come_in_and_as_whom() {
        let shown = line("/srv:client=192.0.2.0/24,client=local:7,ro");
        let expected = "export /srv read-only to 192.0.2.0/24, local:7; root acts as 65534:65534; \
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
