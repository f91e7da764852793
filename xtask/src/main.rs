//! Developer tasks: `cargo xtask image` makes Dunnage's image, `cargo xtask oci` any small one that a test needs.
#![expect(clippy::disallowed_methods, reason = "a build tool starts programs")]
#![expect(clippy::print_stdout, reason = "a build tool talks to people")]

mod binary;
mod image;
mod oci;
mod packages;
mod programs;
mod run;
mod small;
mod tree;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Developer tasks of Dunnage")]
enum Task {
    /// Make Dunnage's image: the static binary and the file system tools of Debian's packages
    Image(image::Arguments),
    /// Make a small image from files of this machine
    Oci(small::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Image(arguments) => image::make(&arguments),
        Task::Oci(arguments) => small::make(&arguments),
    }
}
