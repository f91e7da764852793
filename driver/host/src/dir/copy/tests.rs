use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use rustix::fs::{
    CWD, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat, getxattr, setxattr, utimensat,
};

use super::*;

pub(in crate::dir) fn scratch() -> (tempfile::TempDir, Dir) {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::create_dir(scratch.path().join("from")).unwrap();
    let dir = Dir::open(scratch.path()).unwrap();
    (scratch, dir)
}

fn copy(dir: &Dir) -> Result<How> {
    dir.dir("from", Mounts::Refuse)?.copy_tree(dir, "to")
}

/// Every kind of file, with everything that one can have, in a directory; a file beside it is for links to lead to.
/// Gives the socket, which goes with its listener.
pub(in crate::dir) fn plant(from: &Path, outside: &Path) -> UnixListener {
    std::fs::write(outside, "secret").unwrap();
    let long = "x".repeat(255);
    let names = ["plain", "new\nline", " ", "-rf", "*", long.as_str()];
    for name in names {
        std::fs::write(from.join(name), name).unwrap();
    }
    std::fs::write(from.join(OsStr::from_bytes(b"no \xff text")), "bytes").unwrap();
    std::fs::create_dir_all(from.join("sub/deep")).unwrap();
    symlink(outside, from.join("sub/out")).unwrap();
    symlink("../plain", from.join("sub/in")).unwrap();
    symlink("nowhere", from.join("dangling")).unwrap();
    std::fs::hard_link(from.join("plain"), from.join("sub/again")).unwrap();
    std::fs::hard_link(from.join("sub/out"), from.join("sub/deep/out")).unwrap();
    let socket = UnixListener::bind(from.join("socket")).unwrap();
    mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        mknodat(CWD, from.join("null"), FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).unwrap();
        for (name, owner) in [("plain", 1234), ("dangling", 77), ("fifo", 5), ("sub", 42)] {
            chownat(CWD, from.join(name), Some(Uid::from_raw(owner)), None, AtFlags::SYMLINK_NOFOLLOW)
                .unwrap();
        }
    }
    setxattr(from.join("plain"), "user.note", b"kept", XattrFlags::empty()).unwrap();
    setxattr(from.join("sub"), "user.dir", b"kept too", XattrFlags::empty()).unwrap();
    std::fs::set_permissions(from.join("plain"), std::fs::Permissions::from_mode(0o4751)).unwrap();
    std::fs::set_permissions(from.join("sub"), std::fs::Permissions::from_mode(0o1711)).unwrap();
    let past = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: 1_000_000, tv_nsec: 5 },
    };
    for name in ["plain", "sub", "dangling", "fifo", "."] {
        utimensat(CWD, from.join(name), &past, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    socket
}

#[test]
fn every_kind_of_file_is_copied_with_what_it_has() {
    let (scratch, dir) = scratch();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    let outside = scratch.path().join("outside");
    let _socket = plant(&from, &outside);
    copy(&dir).unwrap();
    assert_eq!(listing(&from), listing(&to));
    assert_eq!(std::fs::metadata(to.join("plain")).unwrap().mode() & 0o7777, 0o4751);
    let mut value = [0; 16];
    let size = getxattr(to.join("plain"), "user.note", &mut value).unwrap();
    assert_eq!(&value[..size], b"kept");
    let size = getxattr(to.join("sub"), "user.dir", &mut value).unwrap();
    assert_eq!(&value[..size], b"kept too");
    assert_ne!(inode(&to.join("plain")), inode(&from.join("plain")));
    assert_eq!(inode(&to.join("plain")), inode(&to.join("sub/again")));
    assert_eq!(inode(&to.join("sub/out")), inode(&to.join("sub/deep/out")));
    assert_eq!(std::fs::read_link(to.join("sub/out")).unwrap(), outside);
    let left: Vec<_> = dir.entries().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(left, ["from", "outside", "to"]);
}

pub(in crate::dir) fn inode(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).unwrap().ino()
}

/// All that is to be equal, by path.
pub(in crate::dir) fn listing(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let found = std::fs::symlink_metadata(&path).unwrap();
        let content = match found.file_type() {
            kind if kind.is_file() => format!("{:?}", std::fs::read(&path).unwrap()),
            kind if kind.is_symlink() => format!("{:?}", std::fs::read_link(&path).unwrap()),
            kind if kind.is_dir() => {
                todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                String::new()
            }
            _ => found.rdev().to_string(),
        };
        lines.push(format!(
            "{:?} {:o} {}:{} {}.{} {} {content}",
            path.strip_prefix(root).unwrap(),
            found.mode(),
            found.uid(),
            found.gid(),
            found.mtime(),
            found.mtime_nsec(),
            if found.is_dir() { 0 } else { found.nlink() },
        ));
    }
    lines.sort();
    lines
}

/// A capability and access lists, in the forms that the kernel stores.
#[test]
fn capabilities_and_access_lists_are_kept_and_not_passed_on() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (scratch, dir) = scratch();
    let from = scratch.path().join("from");
    let capability = [&[1, 0, 0, 2][..], &[0, 4, 0, 0], &[0; 12]].concat();
    // The owner, user 7, the group, the mask and the others.
    let list = [
        &[2, 0, 0, 0][..],
        &[1, 0, 7, 0, 255, 255, 255, 255],
        &[2, 0, 6, 0, 7, 0, 0, 0],
        &[4, 0, 5, 0, 255, 255, 255, 255],
        &[16, 0, 6, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    std::fs::write(from.join("program"), "x").unwrap();
    std::fs::create_dir(from.join("shared")).unwrap();
    std::fs::write(from.join("shared/before"), "x").unwrap();
    chownat(CWD, from.join("program"), Some(Uid::from_raw(9)), None, AtFlags::empty()).unwrap();
    setxattr(from.join("program"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    setxattr(from.join("program"), "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    setxattr(from.join("shared"), "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
    copy(&dir).unwrap();
    let get = |path: &str, name: &str| {
        let mut value = vec![0; 256];
        let size = getxattr(scratch.path().join("to").join(path), name, value.as_mut_slice())?;
        value.truncate(size);
        Ok::<_, Errno>(value)
    };
    assert_eq!(get("program", "security.capability").unwrap(), capability);
    assert_eq!(get("program", "system.posix_acl_access").unwrap(), list);
    assert_eq!(get("shared", "system.posix_acl_default").unwrap(), list);
    assert_eq!(get("shared/before", "system.posix_acl_access"), Err(Errno::NODATA));
}

#[test]
fn a_tree_deeper_than_any_path_is_refused_by_name_and_can_be_removed() {
    let (_scratch, dir) = scratch();
    let mut deepest = dir.dir("from", Mounts::Refuse).unwrap();
    for level in 0..DEPTH + 5 {
        deepest = deepest.make_dir(&format!("{level}-{}", "x".repeat(100)), 0o700).unwrap();
    }
    let error = copy(&dir).unwrap_err().to_string();
    assert!(error.contains("directories deep"), "{}", &error[error.len() - 200..]);
    for name in ["to", "to.links", "from"] {
        dir.remove_tree(name).unwrap();
    }
    assert_eq!(dir.entries().unwrap(), []);
}

#[test]
fn a_file_that_is_renamed_while_it_is_copied_stays_one_of_the_tree() {
    let (scratch, dir) = scratch();
    let from = scratch.path().join("from");
    let outside = scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "secret").unwrap();
    std::fs::create_dir(from.join("a")).unwrap();
    std::fs::write(from.join("a/file"), "open").unwrap();
    symlink(&outside, from.join("link")).unwrap();
    std::thread::scope(|scope| {
        // A pod that swaps its directory for a link as fast as it can.
        let swapping = scope.spawn(|| {
            let (a, link) = (from.join("a"), from.join("link"));
            for _ in 0..50_000 {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, &a, CWD, &link, flags).unwrap();
            }
        });
        while !swapping.is_finished() {
            copy(&dir).unwrap();
            for path in ["to/a", "to/link"] {
                let path = scratch.path().join(path);
                if std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
                    assert_eq!(std::fs::read(path.join("file")).unwrap(), b"open");
                }
            }
            dir.remove_tree("to").unwrap();
        }
    });
}
