//! The files of an image, in an order that depends on nothing but their names.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::Context;
use tar::{Builder, EntryType, Header};

/// Paths without a leading slash, each with what is there.
#[derive(Default)]
pub(crate) struct Tree(BTreeMap<String, Entry>);

struct Entry {
    content: Content,
    mode: u32,
}

enum Content {
    Directory,
    File(Vec<u8>),
    Link(String),
}

impl Tree {
    pub(crate) fn directory(&mut self, path: &str, mode: u32) {
        self.insert(path, Content::Directory, mode);
    }

    pub(crate) fn file(&mut self, path: &str, bytes: Vec<u8>, mode: u32) {
        self.insert(path, Content::File(bytes), mode);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.insert(path, Content::Link(target.to_owned()), 0o777);
    }

    /// A file of this machine; symbolic links are followed.
    pub(crate) fn copy(&mut self, path: &str, source: &Path, mode: Option<u32>) -> anyhow::Result<()> {
        let bytes = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        let mode = match mode {
            Some(mode) => mode,
            None => fs::metadata(source)?.permissions().mode() & 0o777,
        };
        self.file(path, bytes, mode);
        Ok(())
    }

    fn insert(&mut self, path: &str, content: Content, mode: u32) {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/') {
            self.0
                .entry(path[..end].to_owned())
                .or_insert(Entry { content: Content::Directory, mode: 0o755 });
        }
        self.0.insert(path.to_owned(), Entry { content, mode });
    }

    /// One tar layer: sorted, owned by root, at the beginning of time.
    pub(crate) fn tar(&self) -> anyhow::Result<Vec<u8>> {
        let mut archive = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_mode(entry.mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(0);
            match &entry.content {
                Content::Directory => {
                    header.set_entry_type(EntryType::Directory);
                    archive.append_data(&mut header, format!("{path}/"), std::io::empty())?;
                }
                Content::File(bytes) => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(bytes.len() as u64);
                    archive.append_data(&mut header, path, bytes.as_slice())?;
                }
                Content::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    archive.append_link(&mut header, path, target)?;
                }
            }
        }
        Ok(archive.into_inner()?)
    }

    /// Writes the files below a folder, for a container engine to copy.
    pub(crate) fn write(&self, root: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
        for (path, entry) in &self.0 {
            let path = root.join(path);
            match &entry.content {
                Content::Directory => fs::create_dir_all(&path),
                Content::File(bytes) => fs::write(&path, bytes),
                Content::Link(target) => symlink(target, &path),
            }
            .with_context(|| format!("cannot write {}", path.display()))?;
            if !matches!(entry.content, Content::Link(_)) {
                fs::set_permissions(&path, fs::Permissions::from_mode(entry.mode))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_making_does_not_change_a_byte() {
        let mut forth = Tree::default();
        forth.file("/usr/bin/a", b"a".to_vec(), 0o755);
        forth.link("bin", "usr/bin");
        forth.directory("/tmp", 0o1777);
        let mut back = Tree::default();
        back.directory("tmp/", 0o1777);
        back.link("/bin", "usr/bin");
        back.file("usr/bin/a", b"a".to_vec(), 0o755);
        assert_eq!(forth.tar().unwrap(), back.tar().unwrap());
    }

    #[test]
    fn a_folder_to_write_to_is_made() {
        let mut tree = Tree::default();
        tree.file("/usr/bin/a", b"a".to_vec(), 0o755);
        tree.link("bin", "usr/bin");
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("new");
        tree.write(&root).unwrap();
        assert_eq!(fs::read(root.join("bin/a")).unwrap(), b"a");
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let mut tree = Tree::default();
        tree.file("/usr/share/doc/x", Vec::new(), 0o644);
        let bytes = tree.tar().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let paths: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(paths, ["usr/", "usr/share/", "usr/share/doc/", "usr/share/doc/x"]);
    }
}
