//! Generates the Rust of every description, and a table of their types for tests.

use spinrpc_xdrgen::Generator;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

const DESCRIPTIONS: [&str; 9] =
    ["hello", "language", "mount", "nfs4", "nfs41", "nfs_prot", "nlm_prot", "store", "unusual"];

fn main() -> Result<(), Box<dyn Error>> {
    Generator::new().build("x/example.x")?;
    let mut rows = String::new();
    for name in DESCRIPTIONS {
        let path = format!("x/{name}.x");
        Generator::new().build(&path)?;
        let model = Generator::new().model(&path, &Generator::new().text(&path)?)?;
        for (index, found) in model.types.iter().enumerate() {
            let rust = model.rust_at(
                &model.use_of(index),
                "'_",
                &format!("crate::{name}::"),
                "spinrpc_xdr::",
            );
            writeln!(
                rows,
                "    Row {{ description: \"{name}\", name: \"{}\", again: |bytes| again::<{rust}>(bytes), words: |bytes| words::<{rust}>(bytes) }},",
                found.name
            )?;
        }
    }
    let directory = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&directory).join("rows.rs"), format!("&[\n{rows}]\n"))?;
    Ok(())
}
