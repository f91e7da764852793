//! `dunnage ROLE`: command line and wiring only.

fn main() {}
