//! Generates Rust from descriptions of data and programs in the language of RFC 4506 (XDR) and RFC 5531
//! (ONC RPC): `.x` files. The generated code needs the crate `spinrpc-xdr`, whose documentation says
//! which Rust type stands for which XDR type.
//!
#![doc = include_str!("guide.md")]
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
