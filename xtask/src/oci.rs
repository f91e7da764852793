//! An OCI image layout with one layer, in one tar archive that containerd, kind, k3s and skopeo take.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::tree::Tree;

/// How the image is called and what runs when it starts.
pub(crate) struct Image {
    /// With its tag, as in `localhost/dunnage:0.1.0`.
    pub(crate) name: String,
    pub(crate) user: String,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) command: Vec<String>,
    pub(crate) labels: Value,
}

/// Writes the archive and gives the image's digest. The same image and tree give the same bytes.
pub(crate) fn write(image: &Image, tree: &Tree, archive: &Path) -> anyhow::Result<String> {
    let layer = tree.tar()?;
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    gzip.write_all(&layer)?;
    let packed = gzip.finish()?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        "config": {
            "Entrypoint": image.entrypoint,
            "Cmd": image.command,
            "User": image.user,
            "WorkingDir": "/",
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Labels": image.labels,
        },
    })
    .to_string()
    .into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &config),
        "layers": [descriptor("layer.v1.tar+gzip", &packed)],
    })
    .to_string()
    .into_bytes();
    let mut entry = descriptor("manifest.v1+json", &manifest);
    entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
    entry["annotations"] = json!({
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rsplit(':').next(),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });

    let mut layout = Tree::default();
    layout.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(), 0o644);
    layout.file("index.json", index.to_string().into_bytes(), 0o644);
    let name = digest(&manifest);
    for blob in [config, manifest, packed] {
        layout.file(&format!("blobs/{}", digest(&blob).replace(':', "/")), blob, 0o644);
    }
    if let Some(folder) = archive.parent() {
        fs::create_dir_all(folder)?;
    }
    // A reader never sees half an archive.
    let part = archive.with_extension("part");
    fs::write(&part, layout.tar()?).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, archive)?;
    Ok(name)
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({
        "mediaType": format!("application/vnd.oci.image.{kind}"),
        "digest": digest(bytes),
        "size": bytes.len(),
    })
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (Image, Tree) {
        let image = Image {
            name: "localhost/example:1".into(),
            user: String::new(),
            entrypoint: vec!["/bin/true".into()],
            command: Vec::new(),
            labels: json!({}),
        };
        let mut tree = Tree::default();
        tree.file("/bin/true", b"true".to_vec(), 0o755);
        (image, tree)
    }

    #[test]
    fn the_same_image_is_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (image, tree) = example();
        let (first, second) = (folder.path().join("first.tar"), folder.path().join("second.tar"));
        let digests = (write(&image, &tree, &first).unwrap(), write(&image, &tree, &second).unwrap());
        assert_eq!(digests.0, digests.1);
        assert_eq!(fs::read(first).unwrap(), fs::read(second).unwrap());
    }

    #[test]
    fn every_blob_lies_under_its_own_digest() {
        let folder = tempfile::tempdir().unwrap();
        let (image, tree) = example();
        let path = folder.path().join("image.tar");
        let manifest = write(&image, &tree, &path).unwrap();
        let mut archive = tar::Archive::new(fs::File::open(path).unwrap());
        let mut blobs = 0;
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            if let Some(name) = path.strip_prefix("blobs/sha256/").filter(|name| !name.is_empty()) {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
                assert_eq!(digest(&bytes), format!("sha256:{name}"));
                blobs += usize::from(digest(&bytes) == manifest) * 10 + 1;
            }
        }
        assert_eq!(blobs, 13, "three blobs, one of them the manifest");
    }
}
