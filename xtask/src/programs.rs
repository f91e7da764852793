//! The shared libraries of a program, as the dynamic loader finds them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::run;

/// The libraries, the loader among them, of a program of this machine. A static program has none.
pub(crate) fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match run::output(Command::new("ldd").arg(program)) {
        Ok(listing) => Ok(resolved(&listing)),
        Err(error) if error.to_string().contains("not a dynamic executable") => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The libraries of a program in an unpacked tree, by the loader of that tree: those of this machine play no part.
pub(crate) fn libraries_below(root: &Path, program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let loader = loader(root)?;
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let path = format!("{0}/lib/{triplet}:{0}/usr/lib/{triplet}", root.display());
    let listing =
        run::output(Command::new(&loader).arg("--list").arg("--library-path").arg(path).arg(program))?;
    Ok(resolved(&listing).into_iter().filter(|library| library.starts_with(root)).collect())
}

/// Where the programs of an unpacked tree look for their loader.
fn loader(root: &Path) -> anyhow::Result<PathBuf> {
    [
        "lib64/ld-linux-x86-64.so.2",
        "lib/ld-linux-aarch64.so.1",
        "usr/lib64/ld-linux-x86-64.so.2",
        "usr/lib/ld-linux-aarch64.so.1",
    ]
    .iter()
    .map(|name| root.join(name))
    .find(|path| path.exists())
    .with_context(|| format!("no dynamic loader below {}", root.display()))
}

/// Reads `name => /path (0x…)` and, for the loader, `/path (0x…)`.
fn resolved(listing: &str) -> Vec<PathBuf> {
    listing
        .lines()
        .filter_map(|line| {
            let (found, _) = line.split_once(" (0x")?;
            let path = found.rsplit("=> ").next()?.trim();
            path.starts_with('/').then(|| PathBuf::from(path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listing_of_a_loader_is_read() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibuuid.so.1 => /lib/x/libuuid.so.1 (0x00007f02)\n\t/lib64/ld.so (0x00007f03)\n";
        assert_eq!(resolved(listing), [PathBuf::from("/lib/x/libuuid.so.1"), PathBuf::from("/lib64/ld.so")]);
    }
}
