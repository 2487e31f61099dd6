//! Generates the types and stubs of NFS and of MOUNT from their descriptions.

fn main() -> Result<(), spinrpc_xdrgen::BuildError> {
    let generator = spinrpc_xdrgen::Generator::new();
    generator.build("src/nfs_prot.x")?;
    generator.build("src/mount.x").map(drop)
}
