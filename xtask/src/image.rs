//! Dunnage's own image: the binary, and the file system tools with the libraries they need. No shell, no distribution.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::oci::{self, Image};
use crate::tree::Tree;
use crate::{binary, packages, programs};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What the driver may run, and what a person looking at a broken volume from inside the pod wants.
const PACKAGES: &[(&str, &[&str])] = &[
    (
        "e2fsprogs",
        &[
            "mke2fs",
            "mkfs.ext4",
            "e2fsck",
            "fsck.ext4",
            "resize2fs",
            "tune2fs",
            "dumpe2fs",
            "debugfs",
            "chattr",
            "lsattr",
        ],
    ),
    ("xfsprogs", &["mkfs.xfs", "xfs_growfs", "xfs_repair", "xfs_db", "xfs_io", "xfs_quota"]),
    ("btrfs-progs", &["btrfs", "mkfs.btrfs", "btrfstune"]),
    ("mount", &["mount", "umount", "losetup"]),
    (
        "util-linux",
        &["blkid", "blockdev", "findmnt", "fsck", "fsfreeze", "fstrim", "lsblk", "nsenter", "wipefs"],
    ),
];

/// Upstream's names: an image swap in somebody's manifest finds its program.
const UPSTREAM_NAMES: &[&str] = &[
    "csi-attacher",
    "csi-external-health-monitor-controller",
    "csi-node-driver-registrar",
    "csi-provisioner",
    "csi-resizer",
    "csi-snapshotter",
    "livenessprobe",
    "snapshot-controller",
];

#[derive(Args)]
pub(crate) struct Arguments {
    /// Cargo profile: `release` for an image to publish, `fast` for tests
    #[arg(long, default_value = "release")]
    profile: String,
    /// Name and tag
    #[arg(long, default_value_t = format!("localhost/dunnage:{VERSION}"))]
    name: String,
    /// The archive to write
    #[arg(long, default_value = "dist/dunnage-image.tar")]
    output: PathBuf,
    /// Write the files into this folder instead (what the Containerfile copies)
    #[arg(long)]
    rootfs: Option<PathBuf>,
}

pub(crate) fn make(arguments: &Arguments) -> anyhow::Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let binary = binary::build(workspace, &arguments.profile)?;

    let mut tree = Tree::default();
    // Debian's packages name both /bin and /usr/bin: one place for each, as on a merged system.
    for name in ["bin", "sbin", "lib", "lib64"] {
        tree.directory(&format!("usr/{name}"), 0o755);
        tree.link(name, &format!("usr/{name}"));
    }
    for name in ["dev", "etc", "proc", "run", "sys", "var"] {
        tree.directory(name, 0o755);
    }
    tree.directory("tmp", 0o1777);
    tree.file(
        "etc/passwd",
        b"root:x:0:0:root:/:/nonexistent\nnobody:x:65534:65534:nobody:/:/nonexistent\n".to_vec(),
        0o644,
    );
    tree.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n".to_vec(), 0o644);
    // findmnt and mount look for it; the kernel has the truth.
    tree.link("etc/mtab", "/proc/self/mounts");
    tree.copy("usr/bin/dunnage", &binary, Some(0o755))?;
    tree.copy("usr/share/doc/dunnage/copyright", &workspace.join("LICENSE"), Some(0o644))?;
    for name in UPSTREAM_NAMES {
        tree.link(&format!("usr/bin/{name}"), "dunnage");
    }
    add_tools(&mut tree)?;

    if let Some(root) = &arguments.rootfs {
        tree.write(root)?;
        println!("files of {} -> {}", arguments.name, root.display());
        return Ok(());
    }
    let image = Image {
        name: arguments.name.clone(),
        user: String::new(),
        entrypoint: vec!["/usr/bin/dunnage".into()],
        command: Vec::new(),
        labels: json!({
            "org.opencontainers.image.title": "Dunnage",
            "org.opencontainers.image.version": VERSION,
            "org.opencontainers.image.licenses": "Apache-2.0",
        }),
    };
    let output = workspace.join(&arguments.output);
    let digest = oci::write(&image, &tree, &output)?;
    let size = std::fs::metadata(&output)?.len();
    println!("{} {digest} -> {} ({} MiB)", image.name, output.display(), size.div_ceil(1 << 20));
    Ok(())
}

fn add_tools(tree: &mut Tree) -> anyhow::Result<()> {
    let names: Vec<_> = PACKAGES.iter().map(|(package, _)| *package).collect();
    let files = packages::download(&names, &cache()?)?;
    let unpacked = tempfile::tempdir()?;
    // The loader prints real paths.
    let root = unpacked.path().canonicalize()?;
    let versions = packages::unpack(&files, &root)?;

    tree.copy("etc/mke2fs.conf", &root.join("etc/mke2fs.conf"), Some(0o644))?;
    for (package, wanted) in PACKAGES {
        for name in *wanted {
            let program = ["sbin", "bin", "usr/sbin", "usr/bin"]
                .iter()
                .map(|folder| root.join(folder).join(name))
                .find(|path| path.exists())
                .with_context(|| format!("package {package} has no program {name}"))?;
            let path = merged(&root, &program)?;
            match std::fs::read_link(&program) {
                Ok(target) => tree.link(&path, &target.display().to_string()),
                Err(_) => tree.copy(&path, &program, Some(0o755))?,
            }
            for library in programs::libraries_below(&root, &program)? {
                // The loader is one of them, and the kernel executes it.
                tree.copy(&merged(&root, &library)?, &library, Some(0o755))?;
            }
        }
    }
    for line in &versions {
        let package = line.split(' ').next().unwrap_or(line);
        let copyright = format!("usr/share/doc/{package}/copyright");
        if root.join(&copyright).exists() {
            tree.copy(&copyright, &root.join(&copyright), Some(0o644))?;
        }
    }
    tree.file("usr/share/doc/dunnage/packages", (versions.join("\n") + "\n").into_bytes(), 0o644);
    Ok(())
}

/// The path in the image of an unpacked file, below /usr wherever its package had it.
fn merged(root: &Path, file: &Path) -> anyhow::Result<String> {
    let path = file.strip_prefix(root)?.display().to_string();
    Ok(if path.starts_with("usr/") { path } else { format!("usr/{path}") })
}

fn cache() -> anyhow::Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => std::env::home_dir().context("there is no home folder")?.join(".cache"),
    };
    Ok(cache.join("dunnage/packages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_package_lands_below_usr() {
        let root = Path::new("/unpacked");
        assert_eq!(merged(root, Path::new("/unpacked/sbin/mke2fs")).unwrap(), "usr/sbin/mke2fs");
        assert_eq!(merged(root, Path::new("/unpacked/usr/bin/lsattr")).unwrap(), "usr/bin/lsattr");
    }
}
