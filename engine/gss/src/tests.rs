//! Test vectors of RFC 3961, RFC 3962 and RFC 8009.
#![cfg(test)]

use crate::cipher::{BLOCK_BYTES, DecryptKey, EncryptKey, tail_bytes};
use crate::enctype::{Enctype, KEY_MAX_BYTES, Purpose, SessionKey, derive_by_cipher, fold};
use crate::mac::MacKey;
use crate::message::{SealKeys, UnsealKeys};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn padded(key: &[u8]) -> [u8; KEY_MAX_BYTES] {
    let mut bytes = [0; KEY_MAX_BYTES];
    bytes[..key.len()].copy_from_slice(key);
    bytes
}

fn session_key(enctype: Enctype, key: &str) -> SessionKey {
    SessionKey::new(enctype, &hex(key)).unwrap()
}

/// RFC 3961 appendix A.1, to 128 bits.
#[test]
fn fold_to_a_block() {
    assert_eq!(fold(b"kerberos").to_vec(), hex("6b65726265726f737b9b5b2b93132b93"));
}

/// RFC 3962 appendix B: keys of passwords end with DK(key, "kerberos").
#[test]
fn derive_by_the_cipher() {
    let short = padded(&hex("cdedb5281bb2f801565a1122b2563515"));
    let derived = derive_by_cipher(&EncryptKey::new(Enctype::Aes128Sha1, &short), b"kerberos");
    assert_eq!(derived[..16].to_vec(), hex("42263c6e89f4fc28b8df68ee09799f15"));
    let long = hex("cdedb5281bb2f801565a1122b25635150ad1f7a04bb9f3a333ecc0e2e1f70837");
    let derived =
        derive_by_cipher(&EncryptKey::new(Enctype::Aes256Sha1, &padded(&long)), b"kerberos");
    let expected = "fe697b52bc0d3ce14432ba036a92e65bbb52280990a2fa27883998d72af30161";
    assert_eq!(derived.to_vec(), hex(expected));
}

/// Keys of usage 2: MIT's test program t_derive for RFC 3962, RFC 8009 appendix A.
#[test]
fn derived_keys() {
    let long_sha1 = "fe697b52bc0d3ce14432ba036a92e65bbb52280990a2fa27883998d72af30161";
    let long_sha2 = "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52";
    let cases = [
        (
            session_key(Enctype::Aes128Sha1, "42263c6e89f4fc28b8df68ee09799f15"),
            "34280a382bc92769b2da2f9ef066854b",
            "5b14fc4e250e14ddf9dccf1af6674f53",
            "4ed31063621684f09ae8d89991af3e8f",
        ),
        (
            session_key(Enctype::Aes256Sha1, long_sha1),
            "bfab388bdcb238e9f9c98d6a878304f04d30c82556375ac507a7a852790f4674",
            "c7cfd9cd75fe793a586a542d87e0d1396f1134a104bb1a9190b8c90ada3ddf37",
            "97151b4c76945063e2eb0529dc067d97d7bba90776d8126d91f34f3101aea8ba",
        ),
        (
            session_key(Enctype::Aes128Sha256, "3705d96080c17728a0e800eab6e0d23c"),
            "b31a018a48f54776f403e9a396325dc3",
            "9b197dd1e8c5609d6e67c3e37c62c72e",
            "9fda0e56ab2d85e1569a688696c26a6c",
        ),
        (
            session_key(Enctype::Aes256Sha384, long_sha2),
            "ef5718be86cc84963d8bbb5031e9f5c4ba41f28faf69e73d",
            "56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49",
            "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f",
        ),
    ];
    for (key, checksum, encryption, integrity) in cases {
        assert_eq!(key.derive(2, Purpose::Checksum).as_slice(), hex(checksum));
        assert_eq!(key.derive(2, Purpose::Encryption).as_slice(), hex(encryption));
        assert_eq!(key.derive(2, Purpose::Integrity).as_slice(), hex(integrity));
    }
}

/// RFC 3962 appendix B: AES in CBC mode with ciphertext stealing, key "chicken teriyaki".
#[test]
fn ciphertext_stealing() {
    let text =
        hex("4920776f756c64206c696b65207468652047656e6572616c20476175277320436869636b656e2c20
                    706c656173652c20616e6420776f6e746f6e20736f75702e");
    let cases = [
        (17, "c6353568f2bf8cb4d8a580362da7ff7f97"),
        (31, "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5"),
        (32, "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584"),
        (
            47,
            "97687268d6ecccc0c07b25e25ecfe584b3fffd940c16a18c1b5549d2f838029e39312523a78662d5
             be7fcbcc98ebf5",
        ),
        (
            48,
            "97687268d6ecccc0c07b25e25ecfe5849dad8bbb96c4cdc03bc103e1a194bbd839312523a78662d5
             be7fcbcc98ebf5a8",
        ),
        (
            64,
            "97687268d6ecccc0c07b25e25ecfe58439312523a78662d5be7fcbcc98ebf5a84807efe836ee89a5
             26730dbc2f7bc8409dad8bbb96c4cdc03bc103e1a194bbd8",
        ),
    ];
    let key = padded(b"chicken teriyaki");
    let encrypt = EncryptKey::new(Enctype::Aes128Sha1, &key);
    let decrypt = DecryptKey::new(Enctype::Aes128Sha1, &key);
    for (length, expected) in cases {
        let mut bytes = text[..length].to_vec();
        let (blocks, tail) = bytes.split_at_mut(length - tail_bytes(length));
        let mut chain = [0; BLOCK_BYTES];
        encrypt.encrypt_blocks(&mut chain, blocks);
        encrypt.encrypt_tail(&mut chain, tail);
        assert_eq!(bytes, hex(expected), "{length} bytes");
        let (blocks, tail) = bytes.split_at_mut(length - tail_bytes(length));
        let mut chain = [0; BLOCK_BYTES];
        decrypt.decrypt_blocks(&mut chain, blocks);
        decrypt.decrypt_tail(&mut chain, tail);
        assert_eq!(bytes, text[..length], "{length} bytes");
    }
}

/// Encrypts confounder and plain text, compares, and decrypts.
fn check_message(key: &SessionKey, usage: u32, plain: &[u8], confounder: &str, expected: &str) {
    let text = [hex(confounder), plain.to_vec()].concat();
    let mut message = text.clone();
    let mut checksum = vec![0; key.enctype().checksum_bytes()];
    SealKeys::new(key, usage).seal(&mut message, &mut checksum);
    assert_eq!([&message[..], &checksum].concat(), hex(expected));
    UnsealKeys::new(key, usage).unseal(&mut message, &checksum).unwrap();
    assert_eq!(message, text);
}

/// RFC 8009 appendix A, sample encryptions with usage 2.
#[test]
fn messages_of_rfc_8009() {
    let counting: Vec<u8> = (0..21).collect();
    let short = session_key(Enctype::Aes128Sha256, "3705d96080c17728a0e800eab6e0d23c");
    let cases = [
        (
            0,
            "7e5895eaf2672435bad817f545a37148",
            "ef85fb890bb8472f4dab20394dca781dad877eda39d50c870c0d5a0a8e48c718",
        ),
        (
            6,
            "7bca285e2fd4130fb55b1a5c83bc5b24",
            "84d7f30754ed987bab0bf3506beb09cfb55402cef7e6877ce99e247e52d16ed4421dfdf8976c",
        ),
        (
            16,
            "56ab21713ff62c0a1457200f6fa9948f",
            "3517d640f50ddc8ad3628722b3569d2ae07493fa8263254080ea65c1008e8fc295fb4852e7d83e1e
             7c48c37eebe6b0d3",
        ),
        (
            21,
            "a7a4e29a4728ce10664fb64e49ad3fac",
            "720f73b18d9859cd6ccb4346115cd336c70f58edc0c4437c5573544c31c813bce1e6d072c186b39a
             413c2f92ca9b8334a287ffcbfc",
        ),
    ];
    for (length, confounder, expected) in cases {
        check_message(&short, 2, &counting[..length], confounder, expected);
    }
    let long = "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52";
    let long = session_key(Enctype::Aes256Sha384, long);
    let cases = [
        (
            0,
            "f764e9fa15c276478b2c7d0c4e5f58e4",
            "41f53fa5bfe7026d91faf9be959195a058707273a96a40f0a01960621ac612748b9bbfbe7eb4ce3c",
        ),
        (
            6,
            "b80d3251c1f6471494256ffe712d0b9a",
            "4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b6092237526ea0d1f61
             cb20d69d10f2",
        ),
        (
            16,
            "53bf8a0d105265d4e276428624ce5e63",
            "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f68cf51f14d798c227
             3f35df574d1f932e40c4ff255b36a266",
        ),
        (
            21,
            "763e65367e864f02f55153c7e3b58af1",
            "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86fef6ec
             b647d6295fae077a1feb517508d2c16b4192e01f62",
        ),
    ];
    for (length, confounder, expected) in cases {
        check_message(&long, 2, &counting[..length], confounder, expected);
    }
}

/// MIT's test program t_decrypt, for RFC 3962: what decrypts there decrypts here.
#[test]
fn messages_of_rfc_3962() {
    let cases = [
        (
            session_key(Enctype::Aes128Sha1, "5a5c0f0ba54f3828b2195e66ca24a289"),
            0,
            "",
            "49ff8e11c173d9583a3254fbe7b1f1df36c538e8416784a1672e6676",
        ),
        (
            session_key(Enctype::Aes128Sha1, "98450e3f3baa13f5c99beb936981b06f"),
            1,
            "1",
            "f86742f537b35dc2174a4dbaa920faf9042090b065e1ebb1cad9a65394",
        ),
    ];
    for (key, usage, plain, message) in cases {
        let mut message = hex(message);
        let checksum = message.split_off(message.len() - 12);
        assert_eq!(UnsealKeys::new(&key, usage).unseal(&mut message, &checksum), Ok(()));
        assert_eq!(&message[16..], plain.as_bytes());
    }
}

/// RFC 8009 appendix A, sample checksums with usage 2.
#[test]
fn checksums_of_rfc_8009() {
    let counting: Vec<u8> = (0..21).collect();
    let long = "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52";
    let cases = [
        (
            session_key(Enctype::Aes128Sha256, "3705d96080c17728a0e800eab6e0d23c"),
            "d78367186643d67b411cba9139fc1dee",
        ),
        (
            session_key(Enctype::Aes256Sha384, long),
            "45ee791567eefca37f4ac1e0222de80d43c3bfa06699672a",
        ),
    ];
    for (key, expected) in cases {
        let mac = MacKey::derive(&key, 2, Purpose::Checksum);
        let mut state = mac.begin();
        state.update(&counting);
        assert_eq!(mac.check(state, &hex(expected)), Ok(()));
    }
}
