//! CPU time of token operations by message size, one core, the best of several rounds.
//!
//! ```sh
//! cargo run --release -p spinrpc-gss --example speed
//! ```

use rustix::time::{ClockId, clock_gettime};
use spinrpc_gss::random::{AesConfounders, Confounders};
use spinrpc_gss::{Enctype, ReceiveKeys, Role, SendKeys, SessionKey, WRAP_HEAD_BYTES};
use std::hint::black_box;
use std::time::Duration;

const SIZES: [usize; 4] = [8, 128, 4096, 1 << 20];
const ROUNDS: usize = 7;
/// Time of a round of one operation.
const ROUND: Duration = Duration::from_millis(40);

struct Bench {
    send: SendKeys,
    receive: ReceiveKeys,
    confounders: AesConfounders,
    plain: Vec<u8>,
    token: Vec<u8>,
}

impl Bench {
    fn new(enctype: Enctype, bytes: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let key = SessionKey::new(enctype, &vec![0x42; enctype.key_bytes()])?;
        let send = SendKeys::new(&key, Role::Initiator, true);
        let mut bench = Self {
            token: vec![0; send.wrap_bytes(bytes)],
            send,
            receive: ReceiveKeys::new(&key, Role::Acceptor, true),
            confounders: AesConfounders::new(&[1; 32]),
            plain: vec![0x17; bytes],
        };
        bench.wrap();
        Ok(bench)
    }

    fn wrap(&mut self) {
        let confounder = self.confounders.next();
        assert!(self.send.wrap(&mut self.token, 1, confounder).is_ok());
    }

    fn unwrap(&self, sealed: &[u8], token: &mut [u8]) -> bool {
        token.copy_from_slice(sealed);
        self.receive.unwrap(token).is_ok()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("ns per operation, best of {ROUNDS}; GB/s of 1 MiB in parentheses");
    println!(
        "{:>8} {:>9} {:>18} {:>18} {:>18} {:>18}",
        "enctype", "bytes", "MIC", "verify", "wrap", "unwrap"
    );
    for enctype in [Enctype::Aes256Sha1, Enctype::Aes256Sha384] {
        for bytes in SIZES {
            let row = measure(enctype, bytes)?;
            let cells = row.map(|nanos| cell(bytes, nanos));
            let [mic, verify, wrap, unwrap] = cells;
            let number = enctype.number();
            println!("{number:>8} {bytes:>9} {mic:>18} {verify:>18} {wrap:>18} {unwrap:>18}");
        }
    }
    Ok(())
}

fn cell(bytes: usize, nanos: f64) -> String {
    let rate = bytes as f64 / nanos;
    if bytes < 1 << 20 { format!("{nanos:.0}") } else { format!("{nanos:.0} ({rate:.2})") }
}

/// Nanoseconds of MIC, verify, wrap and unwrap. Sealing changes the text, so what is sealed next is a
/// ciphertext, which takes as long; opening has a copy of a token before it, whose time is taken off.
fn measure(enctype: Enctype, bytes: usize) -> Result<[f64; 4], Box<dyn std::error::Error>> {
    let mut bench = Bench::new(enctype, bytes)?;
    let mic = bench.send.mic(&bench.plain, 1);
    assert!(bench.receive.verify(&bench.plain, mic.as_slice()).is_ok());
    let sealed = bench.token.clone();
    assert_eq!(bench.token[..2], [5, 4], "a token of {WRAP_HEAD_BYTES} bytes and more");
    let mut copy = sealed.clone();
    let mut best = [f64::INFINITY; 5];
    for _ in 0..ROUNDS {
        let rounds = [
            nanos(|| _ = black_box(bench.send.mic(black_box(&bench.plain), 1))),
            nanos(|| _ = black_box(bench.receive.verify(black_box(&bench.plain), mic.as_slice()))),
            nanos(|| bench.wrap()),
            nanos(|| assert!(bench.unwrap(&sealed, &mut copy))),
            nanos(|| black_box(&mut copy).copy_from_slice(black_box(&sealed))),
        ];
        best.iter_mut().zip(rounds).for_each(|(best, round)| *best = best.min(round));
    }
    let [mic, verify, wrap, unwrap, copying] = best;
    Ok([mic, verify, wrap, unwrap - copying])
}

fn nanos(mut operation: impl FnMut()) -> f64 {
    let mut times = 1;
    loop {
        let began = cpu_time();
        (0..times).for_each(|_| operation());
        let took = cpu_time() - began;
        if took >= ROUND {
            return took.as_nanos() as f64 / f64::from(times);
        }
        times *= 2;
    }
}

/// CPU time of this thread: others on the machine change it little.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
