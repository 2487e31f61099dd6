//! Changes of the exports while the server runs: a reload of the configuration.
//!
//! A new configuration takes effect as a whole or not at all. Connections, and back ends that stay exported, are not
//! touched.

use crate::back_ends::{self, Opened};
use crate::cli::{Cli, Options};
use crate::failure::Failure;
use crate::names::Names;
use crate::setup::Setup;
use spinrpc::config::Host;
use spinrpc_nfs::server::Server;
use spinrpc_nfs::server::exports::Export;
use std::sync::{Arc, Weak};

pub(crate) struct Live {
    cli: Cli,
    host: Host,
    /// Those that the server has started with.
    options: Options,
    has_kerberos: bool,
    /// Dropped by others, which wait for its threads.
    server: Weak<Server>,
    opened: Opened,
    names: Names,
}

impl Live {
    pub(crate) fn new(
        (cli, host): (Cli, Host),
        setup: &Setup,
        server: &Arc<Server>,
        (opened, names): (Opened, Names),
    ) -> Self {
        let (options, has_kerberos) = (setup.options.clone(), setup.kerberos.is_some());
        Self { cli, host, options, has_kerberos, server: Arc::downgrade(server), opened, names }
    }

    /// Returns the changes in words, or all that is wrong with the new configuration: the exports stay then.
    pub(crate) fn reload(&mut self) -> Result<Vec<String>, Vec<Failure>> {
        let setup = Setup::of(&self.cli, &self.host)?;
        if setup.kerberos.is_some() && !self.has_kerberos {
            let message = "an export with sec=krb5, krb5i or krb5p needs a restart, because the \
                           server has started without Kerberos";
            return Err(vec![Failure::Usage(message.to_owned())]);
        }
        let opened = back_ends::open(&setup.exports, setup.threads, &self.opened)?;
        let mut said = changes(&self.opened, &opened);
        let names = self.names.look_up(opened.clients());
        said.extend(names.failures());
        self.publish(&opened, &names).map_err(|failure| vec![failure])?;
        (self.opened, self.names) = (opened, names);
        let fixed = self.options.fixed_differences(&setup.options);
        if !fixed.is_empty() {
            said.push(format!("a restart is needed for changes of {}", fixed.join(", ")));
        }
        Ok(said)
    }

    fn publish(&self, opened: &Opened, names: &Names) -> Result<(), Failure> {
        let Some(server) = self.server.upgrade() else { return Ok(()) };
        let exports = opened.named(names)?;
        server.replace_exports(exports).map_err(|error| Failure::failed("the exports", error))
    }

    pub(crate) fn close(&mut self) -> Opened {
        std::mem::take(&mut self.opened)
    }
}

fn changes(before: &Opened, after: &Opened) -> Vec<String> {
    let find = |opened: &'_ Opened, path: &str| {
        opened.exports.iter().position(|export| export.path == path)
    };
    let is_same = |old: &Export, new: &Export| {
        Arc::ptr_eq(&old.file_system, &new.file_system) && old.options == new.options
    };
    let mut said = Vec::new();
    for export in &after.exports {
        match find(before, &export.path).and_then(|at| before.exports.get(at)) {
            None => said.push(format!("export {} is new", export.path)),
            Some(old) if !is_same(old, export) => {
                said.push(format!("export {} has changed", export.path));
            }
            Some(_) => {}
        }
    }
    let gone = before.exports.iter().filter(|export| find(after, &export.path).is_none());
    said.extend(gone.map(|export| format!("export {} is gone", export.path)));
    if said.is_empty() {
        said.push("no export has changed".to_owned());
    }
    said
}
