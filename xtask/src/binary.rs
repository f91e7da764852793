//! Builds the one static binary.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

/// Builds `dunnage` with a profile of the root Cargo.toml and gives its path.
pub(crate) fn build(workspace: &Path, profile: &str) -> anyhow::Result<PathBuf> {
    let architecture = std::env::consts::ARCH;
    let musl = format!("{architecture}-unknown-linux-musl");
    let mut flags = vec![
        // Where it was built is not part of what was built.
        format!("--remap-path-prefix={}=/dunnage", workspace.display()),
        format!("--remap-path-prefix={}=/cargo", cargo_home().display()),
    ];
    let mut command = Command::new("cargo");
    // A target folder of its own: an image is made while somebody else works.
    let target_directory = workspace.join("target/image");
    let target = if has_target(&musl) {
        if run::output(Command::new("musl-gcc").arg("--version")).is_err() {
            // The few C files (ring, psm) need no libc.
            command.env(format!("CC_{}", musl.replace('-', "_")), "gcc");
        }
        musl
    } else {
        println!("no Rust target {musl} (rustup target add {musl}): linking glibc statically instead");
        flags.push("-Ctarget-feature=+crt-static".to_owned());
        format!("{architecture}-unknown-linux-gnu")
    };
    command
        .args(["build", "--locked", "--package", "dunnage", "--profile", profile, "--target", &target])
        .current_dir(workspace)
        .env("CARGO_TARGET_DIR", &target_directory)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    run::visibly(&mut command)?;
    Ok(target_directory.join(target).join(profile).join("dunnage"))
}

/// Asks rustup for the target, which takes seconds where it can be had.
fn has_target(target: &str) -> bool {
    run::output(Command::new("rustup").args(["target", "add", target])).is_ok() || {
        // Without rustup the distribution's toolchain may still have it.
        run::output(Command::new("rustc").args(["--print", "target-libdir", "--target", target]))
            .is_ok_and(|directory| Path::new(directory.trim()).exists())
    }
}

fn cargo_home() -> PathBuf {
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .unwrap_or_else(|| PathBuf::from("/usr/local/cargo"))
}
