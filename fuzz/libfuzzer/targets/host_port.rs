#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::host_port(data));
