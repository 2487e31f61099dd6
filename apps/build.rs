//! Generates the types and stubs of spin-kv's protocol, of NFS and of MOUNT from their descriptions.

fn main() -> Result<(), spinrpc_xdrgen::BuildError> {
    let generator = spinrpc_xdrgen::Generator::new();
    generator.build("src/kv/kv.x")?;
    generator.build("src/nfs/nfs_prot.x")?;
    generator.build("src/nfs/mount.x").map(drop)
}
