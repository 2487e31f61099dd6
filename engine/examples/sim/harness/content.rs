//! Bytes that tell which call and which item they belong to.

/// The key of item `index` of call `token`.
pub(crate) fn key(token: u64, index: usize) -> u64 {
    token.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64) << 56 | 1
}

pub(crate) fn fill(key: u64, bytes: &mut [u8]) {
    let mut words = Words::new(key);
    let (chunks, rest) = bytes.as_chunks_mut();
    chunks.iter_mut().for_each(|chunk| *chunk = words.next_chunk());
    rest.copy_from_slice(&words.next_chunk()[..rest.len()]);
}

pub(crate) fn bytes(key: u64, length: usize) -> Vec<u8> {
    let mut words = Words::new(key);
    let chunks = std::iter::repeat_with(|| words.next_chunk()).take(length.div_ceil(CHUNK_BYTES));
    let mut bytes = chunks.collect::<Vec<_>>().into_flattened();
    bytes.truncate(length);
    bytes
}

pub(crate) fn is(key: u64, bytes: &[u8]) -> bool {
    let mut words = Words::new(key);
    let (chunks, rest) = bytes.as_chunks();
    chunks.iter().all(|chunk| *chunk == words.next_chunk())
        && *rest == words.next_chunk()[..rest.len()]
}

/// A number that looks like chance.
pub(crate) fn mix(key: u64) -> u64 {
    let mixed = (key ^ key >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    mixed ^ mixed >> 27
}

/// Numbers made at a time: each is made from the one `LANES` before it, so that they need not wait for
/// one another.
const LANES: usize = 8;
/// Bytes of `count` numbers.
const CHUNK_BYTES: usize = LANES * 8;
/// One step of the sequence multiplies by the one and adds the other.
const STEP: (u64, u64) = (0x5851_f42d_4c95_7f2d, 0x1405_7b7e_f767_814f);
/// `LANES` steps.
const STRIDE: (u64, u64) = stride();

const fn stride() -> (u64, u64) {
    let (mut factor, mut summand, mut lane) = (1_u64, 0_u64, 0);
    while lane < LANES {
        factor = factor.wrapping_mul(STEP.0);
        summand = summand.wrapping_mul(STEP.0).wrapping_add(STEP.1);
        lane += 1;
    }
    (factor, summand)
}

/// The sequence that begins with a key, `LANES` numbers at a time.
struct Words([u64; LANES]);

impl Words {
    fn new(key: u64) -> Self {
        let mut next = key;
        Self(std::array::from_fn(|_| {
            let word = next;
            next = word.wrapping_mul(STEP.0).wrapping_add(STEP.1);
            word
        }))
    }

    fn next_chunk(&mut self) -> [u8; CHUNK_BYTES] {
        let mut chunk = [0; CHUNK_BYTES];
        let (places, _) = chunk.as_chunks_mut();
        for (place, word) in places.iter_mut().zip(&mut self.0) {
            *place = word.to_le_bytes();
            *word = word.wrapping_mul(STRIDE.0).wrapping_add(STRIDE.1);
        }
        chunk
    }
}
