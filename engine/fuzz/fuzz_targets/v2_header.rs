#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| spinrpc_fuzz::v2_header::run(data));
