//! Debian's packages of the running release, downloaded once and unpacked beside the system, not into it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::run;

/// The file names of the packages and of the libraries they depend on, sorted; downloads what the cache lacks.
pub(crate) fn download(roots: &[&str], cache: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(cache)?;
    if run::output(Command::new("apt-cache").args(["show", "--no-all-versions", roots[0]])).is_err() {
        run::output(Command::new("apt-get").args(["update", "-qq"]))
            .context("the image's tools come from Debian or Ubuntu packages: apt-get is needed")?;
    }
    let packages = closure(roots)?;
    // From an empty folder: apt-get does not list what lies in the current one already.
    let empty = tempfile::tempdir()?;
    let listing = run::output(
        Command::new("apt-get").args(["download", "--print-uris"]).args(&packages).current_dir(empty.path()),
    )?;
    let mut files = Vec::new();
    let mut missing = Vec::new();
    for line in listing.lines() {
        let file = line.split(' ').nth(1).with_context(|| format!("not understood: {line}"))?;
        // apt writes the epoch's colon as %3a here and on disk.
        let package = file.split('_').next().unwrap_or(file);
        if !cache.join(file).exists() {
            missing.push(package.to_owned());
        }
        files.push(cache.join(file));
    }
    if !missing.is_empty() {
        println!("downloading {} packages", missing.len());
        run::output(Command::new("apt-get").args(["download", "-qq"]).args(&missing).current_dir(cache))?;
    }
    for file in &files {
        ensure!(file.exists(), "apt-get did not download {}", file.display());
    }
    files.sort();
    Ok(files)
}

/// The packages and, of what they depend on, the libraries: nothing else ends up in a program's process.
fn closure(roots: &[&str]) -> anyhow::Result<BTreeSet<String>> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut waiting: Vec<String> = roots.iter().map(ToString::to_string).collect();
    while !waiting.is_empty() {
        let listing = run::output(Command::new("apt-cache").args(["depends", "--important"]).args(&waiting))?;
        found.extend(waiting);
        waiting = library_dependencies(&listing)
            .filter(|name| !found.contains(name))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
    }
    Ok(found)
}

fn library_dependencies(listing: &str) -> impl Iterator<Item = String> + '_ {
    listing.lines().filter_map(|line| {
        let (_, name) = line.split_once("Depends: ")?;
        (name.starts_with("lib") || name.starts_with("zlib")).then(|| name.to_owned())
    })
}

/// Unpacks into a folder and gives one line a package, `name version architecture`.
pub(crate) fn unpack(files: &[PathBuf], root: &Path) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for file in files {
        run::output(Command::new("dpkg-deb").arg("-x").arg(file).arg(root))?;
        let line = run::output(
            Command::new("dpkg-deb")
                .args(["--show", "--showformat=${Package} ${Version} ${Architecture}"])
                .arg(file),
        )?;
        lines.push(line);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_are_followed() {
        let listing = "e2fsprogs\n  PreDepends: libblkid1\n |Depends: libuuid1\n  Depends: logsave\n  Depends: zlib1g\n";
        assert_eq!(library_dependencies(listing).collect::<Vec<_>>(), ["libblkid1", "libuuid1", "zlib1g"]);
    }
}
