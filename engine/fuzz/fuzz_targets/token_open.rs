#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| spinrpc_fuzz::token_open::run(data));
