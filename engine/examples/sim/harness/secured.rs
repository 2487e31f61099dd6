//! RPCSEC_GSS, where the simulation is built with the feature `gss-test`: each link draws a service, or none.

#[cfg(feature = "gss-test")]
pub(crate) use with::{accept, secure};
#[cfg(not(feature = "gss-test"))]
pub(crate) use without::{accept, secure};

#[cfg(feature = "gss-test")]
mod with {
    use spinrpc::gss::mechanism::GivenKeys;
    use spinrpc::gss::{Enctype, GssAcceptor, GssInitiator, GssService};
    use spinrpc::{ConnectOptions, Engine, EngineError};

    fn keys(name: String) -> GivenKeys {
        let (enctype, key) = (Enctype::Aes128Sha1, vec![0x51; 16]);
        GivenKeys { enctype, key, name, tokens: 1, lifetime: u64::MAX }
    }

    pub(crate) fn accept(engine: &Engine) -> Result<(), EngineError> {
        engine.gss(GssAcceptor::new(keys("server".to_owned())))
    }

    /// Has the calls of this link go under the service that it draws.
    pub(crate) fn secure(options: ConnectOptions, link: usize) -> ConnectOptions {
        let service = match link % 4 {
            0 => return options,
            1 => GssService::None,
            2 => GssService::Integrity,
            _ => GssService::Privacy,
        };
        let keys = keys(format!("link {link}"));
        options.gss(GssInitiator::new(keys, "sim@server").service(service))
    }
}

#[cfg(not(feature = "gss-test"))]
mod without {
    use spinrpc::{ConnectOptions, Engine, EngineError};

    pub(crate) fn accept(_: &Engine) -> Result<(), EngineError> {
        Ok(())
    }

    pub(crate) fn secure(options: ConnectOptions, _: usize) -> ConnectOptions {
        options
    }
}
