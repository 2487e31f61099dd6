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
//! a thread that calls and waits. `engine/xdr/suite/tests/calls.rs` in the repository uses them all.
//!
//! # Language
//!
//! All of RFC 4506 section 6.3 and RFC 5531 section 12.2, and what rpcgen takes besides: procedures with several
//! arguments, which come as a tuple, and arguments and results of type `string`; `struct` and `enum` before the name of a type;
//! `char`, `short` and `long`, signed or not, each a word in a message; types and constants of the C headers that rpcgen's code
//! includes, such as `u_int`, `uint64_t`, `netobj` and `AUTH_SYS`; constants that are strings. Types are defined in any order,
//! constants before they are used. A definition that is repeated word by word counts once.
//!
//! Names are converted to the case that Rust has for them. Where two names become one, or a name is taken by the generated code, the
//! later one gets an underscore: `fooBar` and `foo_bar` of one struct become `foo_bar` and `foo_bar_`, and a procedure
//! `NONE` has the marker `None_`. Of several enumerators with one value the first is the variant, and the others are associated
//! constants with names like those of variants, for expressions and patterns.
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
//! assert!(rust.contains("pub type Name<'a> = spinrpc_xdr::Opaque<'a, NAME_MAX>;"));
//! assert!(rust.contains("pub data: spinrpc_xdr::Placed<'a, 1048576>,"));
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
//! # Files
//!
//! [`Generator::file`] and [`Generator::build`], and the program, run the C preprocessor, `cpp`, if a line of the file begins with `#` or
//! a macro is defined ([`Generator::define`], `-D`). As for a header by rpcgen, `RPC_HDR` is defined; macros of the system are not.
//!
//! Lines that begin with `%` are C, and skipped, but `%#include "other.h"` is what rpcgen makes of `other.x`: if there is a file
//! `other.x` at that place, seen from the including file, its definitions are read first. They are generated together with those
//! of the including file, as are those of `#include "other.x"`. A file counts once, however often it is included. If a header
//! was written by hand, write an `.x` file beside it with the types that are used.
//!
//! [`Generator::rust`] and [`Generator::model`] take a text and read no other files; [`Generator::text`] reads one with all
//! that it includes.
//!
//! # Limits
//!
//! * A type may contain itself as optional data (`*`) only. A struct whose last field is optional data of the struct is a list of any
//!   length. All others, such as trees, are a `Branch`, of which at most 64 are decoded in each other, so that the
//!   depth of a decoder's stack does not depend on the message. A level takes less than 4 KiB, and no direct placement.
//! * An array of variable length whose items have data for direct placement, such as the operations of a COMPOUND of
//!   NFS version 4, is decoded into a `Vec`: registered memory can be handed out once, and other arrays are decoded
//!   whenever they are iterated. Lists and arrays of fixed length of such items are refused; no binding of RFC 8267
//!   has them:
//!
//!   ```
//!   let generator = spinrpc_xdrgen::Generator::new();
//!   let text = "/*@ ddp */ typedef opaque block<>;\nstruct blocks { block all<16>; };";
//!   assert!(generator.rust("blocks.x", text)?.contains("pub all: spinrpc_xdr::PlacedArray<Block<'a>, 16>,"));
//!   let text = "/*@ ddp */ typedef opaque block<>;\nstruct blocks { block all[16]; };";
//!   let refused = generator.rust("blocks.x", text).unwrap_err();
//!   assert!(refused.to_string().contains("direct placement in a list or in an array"), "{refused}");
//!   # Ok::<(), spinrpc_xdrgen::Error>(())
//!   ```
//! * At most 64 KiB are decoded by value, for each type and for arguments and result of a procedure together, because
//!   they are on the stack. Data of variable length stays in the message.
//!
//!   ```
//!   let generator = spinrpc_xdrgen::Generator::new();
//!   assert!(generator.rust("b.x", "struct block { opaque data[65536]; };").is_ok());
//!   let refused = generator.rust("b.x", "struct block { opaque data[65537]; };").unwrap_err();
//!   assert!(refused.to_string().contains("`block` takes 65537 bytes"), "{refused}");
//!   # Ok::<(), spinrpc_xdrgen::Error>(())
//!   ```
//! * `quadruple` is refused, and so are strings with a backslash.
#![forbid(unsafe_code)]

mod ast;
mod emit;
mod error;
mod lexer;
pub mod model;
mod names;
mod parser;
mod resolve;
mod source;

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
    /// The C preprocessor cannot be run, or found a mistake.
    #[error("{}: cannot run the C preprocessor on it: {problem}", path.display())]
    Preprocessor {
        /// Path of the file that it was to read.
        path: PathBuf,
        /// The problem, in the words of `cpp` or of the system.
        problem: String,
    },
    /// `OUT_DIR` is not set.
    #[error("OUT_DIR is not set; call this from build.rs")]
    NotInBuild,
}

/// Makes Rust from descriptions.
#[derive(Clone, Debug, Default)]
pub struct Generator {
    outside: resolve::Outside,
    /// Macros, as `NAME` or `NAME=VALUE`.
    defines: Vec<String>,
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

    /// Defines a macro for the C preprocessor, as `NAME` or `NAME=VALUE`: for constants of C headers, say. Affects files only.
    #[must_use]
    pub fn define(mut self, macro_definition: impl Into<String>) -> Self {
        self.defines.push(macro_definition.into());
        self
    }

    /// Reads a file and those that it includes, and runs the C preprocessor where it is needed. The result is for
    /// [`Generator::model`] and [`Generator::rust`]; its lines `# NUMBER "FILE"` say where the others come from.
    ///
    /// # Errors
    /// [`BuildError::File`] if a file cannot be read, [`BuildError::Preprocessor`] if `cpp` fails.
    pub fn text(&self, path: impl AsRef<Path>) -> Result<String, BuildError> {
        source::read(path.as_ref(), &self.defines)
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

    /// The Rust of a file and those that it includes; its first line names the file without its directory.
    ///
    /// # Errors
    /// Those of [`Generator::text`], or a mistake in the description.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<String, BuildError> {
        let path = path.as_ref();
        self.rust_of(path, &self.text(path)?)
    }

    fn rust_of(&self, path: &Path, text: &str) -> Result<String, BuildError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let model = self.model(&path.display().to_string(), text)?;
        Ok(emit::rust(&model, &name))
    }

    /// For `build.rs`: writes the Rust of `NAME.x` to `NAME.rs` in `OUT_DIR`, and has Cargo run the build
    /// script again when the description, or a file that it includes, changes. Returns the path that was written.
    ///
    /// # Errors
    /// [`BuildError`]: a file that cannot be read or written, or a mistake in the description.
    pub fn build(&self, path: impl AsRef<Path>) -> Result<PathBuf, BuildError> {
        let path = path.as_ref();
        let text = self.text(path)?;
        for file in source::files(&text) {
            println!("cargo::rerun-if-changed={file}");
        }
        let directory = std::env::var_os("OUT_DIR").ok_or(BuildError::NotInBuild)?;
        let name = path.file_stem().unwrap_or_default();
        let output = Path::new(&directory).join(name).with_extension("rs");
        let rust = self.rust_of(path, &text)?;
        let failed = |source| BuildError::File { path: output.clone(), source };
        std::fs::write(&output, rust).map_err(failed)?;
        Ok(output)
    }
}
