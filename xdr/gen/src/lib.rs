//! Generates Rust from descriptions of data and programs in the language of RFC 4506 (XDR) and RFC 5531
//! (ONC RPC): `.x` files. The generated code needs the crate `spinrpc-xdr`, whose documentation says
//! which Rust type stands for which XDR type.
//!
//! In `build.rs`:
//!
//! ```no_run
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     spinrpc_xdrgen::Generator::new().build("src/kv.x")?;
//!     Ok(())
//! }
//! ```
//!
//! and where the types belong, a module of their own. Its items are `pub`; a module that is private, or of a
//! program, allows those that are not used:
//!
//! ```ignore
//! #[allow(dead_code, unreachable_pub)]
//! mod kv {
//!     include!(concat!(env!("OUT_DIR"), "/kv.rs"));
//! }
//! ```
//!
//! For a version of a program there is a module with `Service`, the trait of a server; `Server`, which an
//! engine serves, and `dispatch`, for services that do more; `Client`, whose replies come to a handler;
//! `Handle`, for calls from any thread, which are futures and can be waited for; `Blocking` and `connect`, for
//! a thread that calls and waits. `xdr/suite/examples/store.rs` in the repository uses them all.
//!
//! # Language
//!
//! All of RFC 4506 section 6.3 and RFC 5531 section 12.2, and what rpcgen takes besides: procedures with several
//! arguments, which come as a tuple; `struct` and `enum` before the name of a type. Types are defined in any order,
//! constants before they are used. Names are converted to the case that Rust has for them; two names that become
//! one are refused.
//!
//! ```
//! let text = r"
//!     const NAME_MAX = 255;
//!     /*@ bytes */ typedef string name<NAME_MAX>;
//!     enum status { OK = 0, NOT_FOUND = 2 };
//!     struct page {
//!         unsigned hyper offset;
//!         /*@ ddp */ opaque data<1048576>;
//!     };
//!     union result switch (status outcome) {
//!     case OK:
//!         page found;
//!     default:
//!         void;
//!     };
//!     struct entry { name text; entry *next; };
//!     program STORE {
//!         version STORE_V1 {
//!             void   STORE_NULL(void) = 0;
//!             result STORE_READ(name, unsigned hyper) = 1;
//!         } = 1;
//!     } = 0x20000001;
//! ";
//! let rust = spinrpc_xdrgen::Generator::new().rust("store.x", text)?;
//! assert!(rust.contains("pub type Name<'a> = Opaque<'a, NAME_MAX>;"));
//! assert!(rust.contains("pub data: Placed<'a, 1048576>,"));
//! assert!(rust.contains("fn store_read(&mut self, args: (super::Name<'_>, u64),"));
//! # Ok::<(), spinrpc_xdrgen::Error>(())
//! ```
//!
//! # Annotations
//!
//! `/*@ ddp */` before a declaration of `opaque<>` makes the item eligible for direct placement (RFC 8267).
//! `/*@ bytes */` before a declaration of `string<>` allows bytes that are not UTF-8. To other tools these are
//! comments. [`Generator::ddp`] and [`Generator::bytes`] do the same for files that cannot be changed.
//!
//! # Limits
//!
//! * A type may contain itself only as a list: a struct whose last field is optional data of the struct.
//!   Trees are refused, so that the depth of a decoder's stack does not depend on the message.
//! * An array of variable length whose items have data for direct placement, such as the operations of a COMPOUND of
//!   NFS version 4, is decoded into a `Vec`: registered memory can be handed out once, and other arrays are decoded
//!   whenever they are iterated. Lists and arrays of fixed length of such items are refused; no binding of RFC 8267
//!   has them:
//!
//!   ```
//!   let generator = spinrpc_xdrgen::Generator::new();
//!   let text = "/*@ ddp */ typedef opaque block<>;\nstruct blocks { block all<16>; };";
//!   assert!(generator.rust("blocks.x", text)?.contains("pub all: PlacedArray<Block<'a>, 16>,"));
//!   let text = "/*@ ddp */ typedef opaque block<>;\nstruct blocks { block all[16]; };";
//!   let refused = generator.rust("blocks.x", text).unwrap_err();
//!   assert!(refused.to_string().contains("direct placement in a list or in an array"), "{refused}");
//!   # Ok::<(), spinrpc_xdrgen::Error>(())
//!   ```
//! * `quadruple` is refused. The C preprocessor is not run; lines that begin with `%` are skipped.
#![forbid(unsafe_code)]

mod ast;
mod emit;
mod error;
mod lexer;
pub mod model;
mod names;
mod parser;
mod resolve;

pub use error::Error;
use model::Model;
use std::path::{Path, PathBuf};

/// A file that was not generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A mistake in the description.
    #[error("{0}")]
    Description(#[from] Error),
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// `OUT_DIR` is not set.
    #[error("OUT_DIR is not set; call this from build.rs")]
    NotInBuild,
}

/// Makes Rust from descriptions.
#[derive(Clone, Debug, Default)]
pub struct Generator {
    outside: resolve::Outside,
}

impl Generator {
    /// A generator without annotations of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a declaration of `opaque<>` eligible for direct placement. `declaration` is `type.field`, as
    /// in the description, or the name of a typedef.
    #[must_use]
    pub fn ddp(mut self, declaration: impl Into<String>) -> Self {
        self.outside.ddp.insert(declaration.into());
        self
    }

    /// Allows a declaration of `string<>` bytes that are not UTF-8; named as in [`Generator::ddp`].
    #[must_use]
    pub fn bytes(mut self, declaration: impl Into<String>) -> Self {
        self.outside.bytes.insert(declaration.into());
        self
    }

    /// Resolves the description `text`. `file` names it in errors.
    ///
    /// # Errors
    /// [`Error`] is the first mistake in the description.
    pub fn model(&self, file: &str, text: &str) -> Result<Model, Error> {
        let parsed = lexer::tokens(text).and_then(|tokens| parser::parse(&tokens));
        let resolved = parsed.and_then(|definitions| resolve::resolve(definitions, &self.outside));
        resolved.map_err(|mistake| mistake.in_file(file, text))
    }

    /// The Rust of the description `text`. `file` names it in errors and in the first line.
    ///
    /// # Errors
    /// [`Error`] is the first mistake in the description.
    pub fn rust(&self, file: &str, text: &str) -> Result<String, Error> {
        self.model(file, text).map(|model| emit::rust(&model, file))
    }

    /// The Rust of a file, whose first line names it without its directory.
    ///
    /// # Errors
    /// [`BuildError::File`] if it cannot be read, or a mistake in the description.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<String, BuildError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| failed(path, source))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let model = self.model(&path.display().to_string(), &text)?;
        Ok(emit::rust(&model, &name))
    }

    /// For `build.rs`: writes the Rust of `NAME.x` to `NAME.rs` in `OUT_DIR`, and has Cargo run the build
    /// script again when the description changes. Returns the path that was written.
    ///
    /// # Errors
    /// [`BuildError`]: a file that cannot be read or written, or a mistake in the description.
    pub fn build(&self, path: impl AsRef<Path>) -> Result<PathBuf, BuildError> {
        let path = path.as_ref();
        println!("cargo::rerun-if-changed={}", path.display());
        let directory = std::env::var_os("OUT_DIR").ok_or(BuildError::NotInBuild)?;
        let name = path.file_stem().unwrap_or_default();
        let output = Path::new(&directory).join(name).with_extension("rs");
        let rust = self.file(path)?;
        std::fs::write(&output, rust).map_err(|source| failed(&output, source))?;
        Ok(output)
    }
}

fn failed(path: &Path, source: std::io::Error) -> BuildError {
    BuildError::File { path: path.to_owned(), source }
}
