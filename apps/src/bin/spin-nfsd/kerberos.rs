//! Kerberos of the exports that ask for it: its options, and the acceptor of contexts.

use crate::cli::{MountAt, Options};
use crate::export_spec::ExportSpec;
use spinrpc::config::Driver;
use std::path::PathBuf;

/// Options of Kerberos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kerberos {
    /// `None`: that of the system.
    pub(crate) keytab: Option<PathBuf>,
    pub(crate) principal: String,
    /// Realm whose users are those of this host. `None`: that of the keytab.
    pub(crate) realm: Option<String>,
    pub(crate) map: Option<PathBuf>,
    /// Where clients establish contexts over TCP.
    pub(crate) port: MountAt,
}

/// Service of NFS servers (RFC 2623 section 2.2.2).
const SERVICE: &str = "nfs";

impl Kerberos {
    /// Those of the command line, if an export accepts Kerberos.
    pub(crate) fn of(options: &Options, driver: Driver) -> Result<Option<Self>, String> {
        let mut exports = options.export.iter().chain(&options.memory);
        let Some(export) = exports.find(|export| uses_kerberos(export)) else {
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
    export.settings.options.flavors.iter().any(|flavor| flavor.is_kerberos())
}

/// The name of an option of Kerberos that was given.
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
    use super::Kerberos;
    use crate::cli::MountAt;
    use crate::failure::Failure;
    use spinrpc::Engine;
    use spinrpc::gss::{AcceptorOptions, GssAcceptor, Kerberos as Mechanism};
    use spinrpc_apps::nfs::server::exports::Exports;
    use spinrpc_apps::nfs::server::kerberos::{ContextService, Mapping, Users, realm_of};
    use spinrpc_apps::nfs::server::tcp::TcpServer;
    use std::env;
    use std::path::PathBuf;
    use std::sync::Arc;

    /// Makes the engine accept contexts; returns the realm whose users are those of the host.
    pub(crate) fn accept(kerberos: &Kerberos, engine: &Engine) -> Result<String, Failure> {
        let options = AcceptorOptions::new().service(&kerberos.principal);
        let options = match &kerberos.keytab {
            Some(path) => options.keytab(path),
            None => options,
        };
        let mechanism = Mechanism::acceptor(options);
        let mechanism = mechanism.map_err(|error| Failure::failed("Kerberos", error))?;
        let realm = realm(kerberos)?;
        let users = users(kerberos, &realm)?;
        let accepting = engine.gss(GssAcceptor::new(Mapping::new(mechanism, users)));
        accepting.map_err(|error| Failure::failed("Kerberos", error))?;
        Ok(realm)
    }

    fn realm(kerberos: &Kerberos) -> Result<String, Failure> {
        if let Some(realm) = &kerberos.realm {
            return Ok(realm.clone());
        }
        let path = kerberos.keytab.clone().unwrap_or_else(usual_keytab);
        realm_of(&path, &kerberos.principal).map_err(|error| {
            let shown = path.display();
            Failure::Failed(format!("keytab {shown}: {error}; or set the realm with --realm"))
        })
    }

    /// As the library finds it, unless krb5.conf names another.
    fn usual_keytab() -> PathBuf {
        let named = env::var("KRB5_KTNAME").unwrap_or_else(|_| "/etc/krb5.keytab".to_owned());
        named.strip_prefix("FILE:").unwrap_or(&named).into()
    }

    fn users(kerberos: &Kerberos, realm: &str) -> Result<Users, Failure> {
        let mut users = Users::of_realm(Some(realm.to_owned()));
        if let Some(path) = &kerberos.map {
            users.read_map(path).map_err(|error| Failure::failed(path.display(), error))?;
        }
        Ok(users)
    }

    /// Listens for clients that establish contexts over TCP.
    pub(crate) fn contexts(
        kerberos: &Kerberos,
        engine: &Engine,
        exports: &Exports,
    ) -> Result<Option<TcpServer>, Failure> {
        let MountAt::Address(address) = kerberos.port else { return Ok(None) };
        let service = ContextService::new(engine.clone(), Arc::new(exports.clone()));
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

#[cfg(not(feature = "krb5"))]
pub(crate) use without::{accept, contexts};

/// Never called: [`Kerberos::of`] has refused the options.
#[cfg(not(feature = "krb5"))]
mod without {
    use super::Kerberos;
    use crate::failure::Failure;
    use spinrpc::Engine;
    use spinrpc_apps::nfs::server::exports::Exports;
    use spinrpc_apps::nfs::server::tcp::TcpServer;

    pub(crate) fn accept(_: &Kerberos, _: &Engine) -> Result<String, Failure> {
        Err(Failure::Usage("built without Kerberos".to_owned()))
    }

    pub(crate) fn contexts(
        _: &Kerberos,
        _: &Engine,
        _: &Exports,
    ) -> Result<Option<TcpServer>, Failure> {
        Ok(None)
    }
}
