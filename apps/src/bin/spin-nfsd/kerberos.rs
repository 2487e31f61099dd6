//! Kerberos of the exports that ask for it: its options, and the acceptor of contexts.

use crate::cli::{MountAt, Options};
use crate::export_spec::{ExportSpec, What};
use crate::failure::Failure;
use spinrpc::Engine;
use spinrpc::config::Driver;
use spinrpc_nfs::server::exports::ExportTable;
use spinrpc_nfs::server::tcp::TcpServer;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kerberos {
    /// `None`: that of `KRB5_KTNAME`, or `/etc/krb5.keytab`.
    pub(crate) keytab: Option<PathBuf>,
    pub(crate) principal: String,
    /// Realm whose users are those of this host. `None`: that of the principal, or of its keys.
    pub(crate) realm: Option<String>,
    pub(crate) map: Option<PathBuf>,
    pub(crate) port: MountAt,
}

/// Service of NFS servers (RFC 2623 section 2.2.2).
const SERVICE: &str = "nfs";

impl Kerberos {
    pub(crate) fn of(
        options: &Options,
        exports: &[ExportSpec],
        driver: Driver,
    ) -> Result<Option<Self>, String> {
        let Some(export) = exports.iter().find(|export| uses_kerberos(export)) else {
            return match first_option(options) {
                Some(name) => {
                    Err(format!("--{name} needs an export with sec=krb5, krb5i or krb5p"))
                }
                None => Ok(None),
            };
        };
        if !cfg!(feature = "krb5") {
            return Err(format!(
                "{}: this spin-nfsd was built without Kerberos, which sec=krb5 needs; build it with \
                 --features krb5",
                export.what
            ));
        }
        may_serve(exports, rustix::process::geteuid().is_root())?;
        let usual = if driver == Driver::Shm { MountAt::Nowhere } else { MountAt::NFS };
        Ok(Some(Self {
            keytab: options.keytab.clone(),
            principal: options.principal.clone().unwrap_or_else(|| SERVICE.to_owned()),
            realm: options.realm.clone(),
            map: options.gss_map.clone(),
            port: options.gss_port.unwrap_or(usual),
        }))
    }
}

fn uses_kerberos(export: &ExportSpec) -> bool {
    export.settings.options.accepts_kerberos()
}

/// The kernel would take all users, strangers included, for the user of the server.
fn may_serve(exports: &[ExportSpec], is_root: bool) -> Result<(), String> {
    let is_directory = |export: &&ExportSpec| matches!(export.what, What::Directory(_));
    match exports.iter().filter(is_directory).find(|export| uses_kerberos(export)) {
        Some(export) if !is_root => Err(format!(
            "{}: a directory with sec=krb5, krb5i or krb5p needs root, because this process cannot \
             act as the users that Kerberos proves; run it as root, or use --memory",
            export.what
        )),
        _ => Ok(()),
    }
}

fn first_option(options: &Options) -> Option<&'static str> {
    let Options { keytab, principal, realm, gss_map, gss_port, .. } = options;
    let given = [
        ("keytab", keytab.is_some()),
        ("principal", principal.is_some()),
        ("realm", realm.is_some()),
        ("gss-map", gss_map.is_some()),
        ("gss-port", gss_port.is_some()),
    ];
    given.into_iter().find_map(|(name, is_given)| is_given.then_some(name))
}

#[cfg(feature = "krb5")]
pub(crate) use accept::{accept, contexts};

#[cfg(feature = "krb5")]
mod accept {
    use super::{Arc, Engine, ExportTable, Failure, Kerberos, TcpServer};
    use crate::cli::MountAt;
    use crate::keytab;
    use spinrpc::gss::{AcceptorOptions, GssAcceptor, Kerberos as Mechanism};
    use spinrpc_nfs::server::kerberos::{ContextService, Keytab, Mapping, Users, realm_in};

    pub(crate) fn accept(kerberos: &Kerberos, engine: &Engine) -> Result<String, Failure> {
        // The file that the library would use, unless `krb5.conf` names another: that of `--keytab` is needed then. The library
        // is told this one, so that keys and realm are of the same file.
        let named = keytab::named(kerberos.keytab.as_deref());
        let named = named.map_err(|error| Failure::failed("Kerberos", error))?;
        let path = named.unwrap_or_else(|| keytab::USUAL.into());
        let options = AcceptorOptions::new().service(&kerberos.principal).keytab(&path);
        let mechanism = Mechanism::acceptor(options);
        let mechanism = mechanism.map_err(|error| Failure::failed("Kerberos", error))?;
        let shown = format!("keytab {}", path.display());
        let failed = |error| Failure::failed(&shown, error);
        let keytab = Keytab::read(&path).map_err(failed)?;
        let realm = kerberos.realm.as_deref().or_else(|| realm_in(&kerberos.principal));
        let realm = realm.map_or_else(|| keytab.realm(&kerberos.principal), |it| Ok(it.to_owned()));
        let realm = realm.map_err(failed)?;
        let mut users = Users::of_realm(Some(realm.clone()));
        let map = match &kerberos.map {
            Some(map) => {
                users.read_map(map).map_err(|error| Failure::failed(map.display(), error))?;
                format!("{} principals of map {}", users.mapped(), map.display())
            }
            None => "no map".to_owned(),
        };
        let principals = keytab.principals(&kerberos.principal).join(", ");
        let accepting = engine.gss(GssAcceptor::new(Mapping::new(mechanism, users)));
        accepting.map_err(|error| Failure::failed("Kerberos", error))?;
        Ok(format!("kerberos: {shown}, keys of {principals}; users of realm {realm}, {map}"))
    }

    pub(crate) fn contexts(
        kerberos: &Kerberos,
        engine: &Engine,
        table: &Arc<ExportTable>,
    ) -> Result<Option<TcpServer>, Failure> {
        let MountAt::Address(address) = kerberos.port else { return Ok(None) };
        let service = ContextService::new(engine.clone(), Arc::clone(table));
        let listening = TcpServer::listen(address, Arc::new(service));
        listening.map(Some).map_err(|error| {
            let what = format!(
                "Kerberos contexts at {address} (is the kernel's NFS server running? Linux clients \
                 use port 2049 only; choose another address with --gss-port, or no)"
            );
            Failure::failed(what, error)
        })
    }
}

/// Never called: [`Kerberos::of`] has refused the options.
#[cfg(not(feature = "krb5"))]
pub(crate) fn accept(_: &Kerberos, _: &Engine) -> Result<String, Failure> {
    Err(Failure::Usage("built without Kerberos".to_owned()))
}

#[cfg(not(feature = "krb5"))]
pub(crate) fn contexts(
    _: &Kerberos,
    _: &Engine,
    _: &Arc<ExportTable>,
) -> Result<Option<TcpServer>, Failure> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_with_kerberos_need_root() {
        let of = |directory: &str, memory: &str| {
            [ExportSpec::directory(directory).unwrap(), ExportSpec::memory(memory).unwrap()]
        };
        let kerberos = of("/srv:sec=sys:krb5i", "m");
        assert_eq!(may_serve(&kerberos, true), Ok(()));
        let error = may_serve(&kerberos, false).unwrap_err();
        assert!(error.starts_with("/srv: a directory with sec=krb5"), "{error}");
        assert_eq!(may_serve(&of("/srv", "m:sec=krb5p"), false), Ok(()));
    }
}
