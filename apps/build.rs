//! Generates the types and stubs of spin-kv's protocol from its description.

fn main() -> Result<(), spinrpc_xdrgen::BuildError> {
    spinrpc_xdrgen::Generator::new().build("src/kv/kv.x").map(drop)
}
