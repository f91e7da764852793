#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| dunnage_driver::untrusted::ids(text));
