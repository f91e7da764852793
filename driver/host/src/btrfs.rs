//! Subvolumes of btrfs, made and destroyed by calls on open directories: the `btrfs` program takes paths, which could be
//! replaced between a look at them and their use.

use std::panic::resume_unwind;
use std::sync::RwLock;
use std::thread;

use rustix::fs::{XattrFlags, fsetxattr, fstatfs};
use rustix::io::Errno;

use crate::dir::{Dir, Mounts};
use crate::error::{Error, Result, failed};
use crate::sys::btrfs as sys;

pub mod quota;
mod search;

use search::{Range, search};

const MAGIC: i64 = 0x9123_683e;

/// The root directory of every subvolume has this inode.
const ROOT_INODE: u64 = 256;

/// The tree of all trees, with an item for each subvolume and one for each that lies in another.
const ROOT_TREE: u64 = 1;
const ROOT_ITEM: u32 = 132;
const ROOT_REF: u32 = 156;

/// Whether a directory lies on btrfs.
pub fn is_btrfs(dir: &Dir) -> Result<bool> {
    let found = fstatfs(dir).map_err(failed("look at the file system of", dir.path()))?;
    #[allow(clippy::unnecessary_cast, reason = "its type differs by architecture")]
    Ok(found.f_type as i64 == MAGIC)
}

/// The id of the subvolume that a directory is the root of; `None` when it is a directory like any other.
pub fn subvolume_at(dir: &Dir) -> Result<Option<u64>> {
    if dir.stat()?.st_ino != ROOT_INODE || !is_btrfs(dir)? {
        return Ok(None);
    }
    sys::subvolume_id(dir).map(Some).map_err(failed("tell the subvolume of", dir.path()))
}

/// Makes an empty subvolume.
pub fn create(parent: &Dir, name: &str) -> Result<()> {
    sys::subvolume_create(parent, name.as_bytes())
        .map_err(failed("make a subvolume at", parent.path().join(name)))
}

/// Makes a read-only snapshot of a subvolume: what it holds at one moment, but for the subvolumes within, which are empty
/// directories in it. Durable when this returns.
pub fn snapshot(of: &Dir, parent: &Dir, name: &str) -> Result<()> {
    sys::snapshot_create(of, parent, name.as_bytes(), sys::SUBVOLUME_READ_ONLY)
        .map_err(failed("make a snapshot of", of.path()))
}

/// Makes such snapshots of several subvolumes of one file system, and tells whether they are of one moment: whether one of the
/// file system's transactions has made all of them. Nothing makes the kernel do that but to be asked for all of them at once.
pub fn snapshot_at_once(of: &[(Dir, &Dir)], name: &str) -> Result<bool> {
    // Opened even when a thread cannot be started, so that the others do not wait for ever.
    let gate = RwLock::new(());
    let make = |of: &Dir, parent: &Dir| {
        drop(gate.read());
        snapshot(of, parent, name)?;
        transaction(&parent.dir(name, Mounts::Refuse)?)
    };
    let make = &make;
    let transactions: Result<Vec<u64>> = thread::scope(|scope| {
        let closed = gate.write();
        let threads: Vec<_> = of.iter().map(|(of, parent)| scope.spawn(move || make(of, parent))).collect();
        drop(closed);
        threads.into_iter().map(|it| it.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    Ok(transactions?.windows(2).all(|two| two[0] == two[1]))
}

/// The transaction that has made a snapshot.
fn transaction(snapshot: &Dir) -> Result<u64> {
    let problem = || Error::Unexpected { path: snapshot.path().to_owned(), problem: "is no snapshot".into() };
    let id = subvolume_at(snapshot)?.ok_or_else(problem)?;
    let mut made = None;
    // The root of a subvolume that is no snapshot has an offset of 0.
    let range = Range { tree: ROOT_TREE, objects: (id, id), kind: ROOT_ITEM, offsets: (1, u64::MAX) };
    search(snapshot, range, |item| made = Some(item.offset))?;
    made.ok_or_else(problem)
}

/// Lets a subvolume be written to, as a snapshot cannot be at first.
pub fn make_writable(subvolume: &Dir) -> Result<()> {
    let failing = || failed("make writable", subvolume.path());
    let flags = sys::subvolume_flags(subvolume).map_err(failing())?;
    if flags & sys::SUBVOLUME_READ_ONLY == 0 {
        return Ok(());
    }
    sys::set_subvolume_flags(subvolume, flags & !sys::SUBVOLUME_READ_ONLY).map_err(failing())
}

/// How what is written to a subvolume from now on is compressed: `zstd`, `lzo`, `zlib` or `none`. Directories that are there
/// already keep what they have.
pub fn set_compression(subvolume: &Dir, method: &str) -> Result<()> {
    const NAME: &str = "btrfs.compression";
    let set = |value: &str| fsetxattr(subvolume, NAME, value.as_bytes(), XattrFlags::empty());
    match set(method) {
        // Linux before 5.14 says that with nothing.
        Err(Errno::INVAL) if method == "none" => set(""),
        done => done,
    }
    .map_err(failed("set the compression of", subvolume.path()))
}

/// Destroys a subvolume of the file system that `anywhere` lies on, read-only or not, with all subvolumes within. It is no
/// error when there is none of this id. Durable when this returns; its space comes back soon after.
pub fn destroy(anywhere: &Dir, id: u64) -> Result<()> {
    // One can lie in another to any depth.
    let mut left = vec![id];
    while let Some(&id) = left.last() {
        let within = within(anywhere, id)?;
        if !within.is_empty() {
            left.extend(within);
            continue;
        }
        match sys::subvolume_destroy(anywhere, id) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed("destroy a subvolume of", anywhere.path())(error)),
        }
        left.pop();
    }
    sys::sync(anywhere).map_err(failed("sync the file system of", anywhere.path()))
}

/// The subvolumes that lie directly in a subvolume.
pub fn within(anywhere: &Dir, id: u64) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    let range = Range { tree: ROOT_TREE, objects: (id, id), kind: ROOT_REF, offsets: (0, u64::MAX) };
    search(anywhere, range, |item| found.push(item.offset))?;
    Ok(found)
}

/// Whether anything is left of a subvolume: one that was destroyed is there until its space has come back.
pub fn exists(anywhere: &Dir, id: u64) -> Result<bool> {
    let mut found = false;
    let range = Range { tree: ROOT_TREE, objects: (id, id), kind: ROOT_ITEM, offsets: (0, u64::MAX) };
    search(anywhere, range, |_| found = true)?;
    Ok(found)
}
