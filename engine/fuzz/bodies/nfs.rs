//! Messages of an NFS client: the arguments of every procedure. All that can be read can be written
//! and read again, and a handle is accepted only by its maker.

use spinrpc::Decoder;
use spinrpc_nfs::nfs3::PROCEDURES;
use spinrpc_nfs::protocol::{HANDLE_BYTES_MAX, ProcedureId};
use spinrpc_nfs::server::handle::Seal;
use spinrpc_nfs::server::procedures::Arguments;
use spinrpc_xdr::to_bytes;

/// One byte chooses the procedure; the rest is its arguments.
pub fn run(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    let Some(operation) = ProcedureId::new(u32::from(*choice) % PROCEDURES as u32) else { return };
    let mut from = Decoder::plain(input);
    let Ok(Some(arguments)) = Arguments::decode(operation, &mut from) else { return };
    let bytes = from.position();
    let handle = arguments.handle().data.bytes();
    assert!(handle.len() <= HANDLE_BYTES_MAX);
    assert!(Seal::new(&[7; 16]).open(handle).is_err(), "a forged handle");
    let written = to_bytes(&arguments);
    assert!(written.len() <= bytes);
    let mut again = Decoder::plain(&written);
    let Ok(Some(read)) = Arguments::decode(operation, &mut again) else {
        panic!("what was written cannot be read");
    };
    assert_eq!(again.finish(), Ok(()));
    assert_eq!(to_bytes(&read), written);
}
