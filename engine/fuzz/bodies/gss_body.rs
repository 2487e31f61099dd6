//! Bodies under integrity and privacy that were altered in flight, or that were never sealed: they
//! open as they were or not at all.

use spinrpc_gss::random::AesConfounders;
use spinrpc_gss::{
    BodyError, Enctype, ReceiveKeys, Role, SendKeys, SessionKey, content_at, seal_body,
    sealed_bytes, unseal_body,
};
use spinrpc_proto::rpc::GssService;

use crate::script::Script;

const SEQUENCE: u32 = 7;

/// The first bytes choose encryption type and service, and one is spare; then either a body is sealed and
/// altered, or the rest is opened as it is.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let enctype = Enctype::ALL[script.below(4)];
    let service = if script.flag() { GssService::Privacy } else { GssService::Integrity };
    script.below(64);
    let is_sealed = !script.flag();
    // Raw input has a key of its own: otherwise the fuzzer presents bodies that it saw sealed.
    let byte = if is_sealed { 0x5a } else { 0x5b };
    let key = SessionKey::new(enctype, &vec![byte; enctype.key_bytes()]).unwrap();
    let receive = ReceiveKeys::new(&key, Role::Acceptor, true);
    if !is_sealed {
        let body = script.bytes(usize::MAX);
        assert!(open(&receive, service, body).is_err(), "opened what was never sealed");
        return;
    }
    let send = SendKeys::new(&key, Role::Initiator, true);
    let content: Vec<u8> = (0..script.below(64) * 4).map(|at| at as u8).collect();
    let body = seal(&send, service, &content);
    let altered = alter(&mut script, &body);
    match open(&receive, service, &altered) {
        Ok(found) => assert_eq!(found, content, "opened as something else"),
        Err(_) => assert!(altered != body, "refused as it was sealed"),
    }
}

fn seal(keys: &SendKeys, service: GssService, content: &[u8]) -> Vec<u8> {
    let mut body = vec![0; sealed_bytes(service, keys, content.len())];
    let at = content_at(service);
    body[at..at + content.len()].copy_from_slice(content);
    seal_body(service, keys, &mut body, SEQUENCE, 1, &mut AesConfounders::new(&[1; 32])).unwrap();
    body
}

/// Bytes changed, cut off or added.
fn alter(script: &mut Script<'_>, body: &[u8]) -> Vec<u8> {
    let mut altered = body.to_vec();
    while !script.is_over() {
        let at = usize::from(script.u16()) % altered.len().max(1);
        match script.below(4) {
            0 => altered.truncate(at),
            1 => altered.push(script.byte()),
            _ if at < altered.len() => altered[at] ^= script.byte(),
            _ => {}
        }
    }
    altered
}

fn open(keys: &ReceiveKeys, service: GssService, body: &[u8]) -> Result<Vec<u8>, BodyError> {
    let mut body = body.to_vec();
    unseal_body(service, keys, &mut body, SEQUENCE).map(|place| body[place].to_vec())
}
