#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dunnage_driver::untrusted::mountinfo(bytes));
