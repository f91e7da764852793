use std::os::unix::fs::symlink;

use super::*;

fn scratch() -> (tempfile::TempDir, Dir) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = Dir::open(scratch.path()).unwrap();
    (scratch, dir)
}

#[test]
fn only_a_plain_path_below_the_base_is_below_it() {
    for (path, expected) in [
        ("/base/a", Some("a")),
        ("/base/a/b", Some("a/b")),
        ("/base//a/", Some("a")),
        ("/base", None),
        ("/base/", None),
        ("/base/..", None),
        ("/base/a/../b", None),
        ("/base/../x", None),
        ("/basement/a", None),
        ("/other/a", None),
        ("base/a", None),
        ("", None),
        ("/base/a\0b", None),
    ] {
        assert_eq!(below(Path::new("/base"), Path::new(path)), expected.map(Path::new), "{path:?}");
    }
}

#[test]
fn a_symlink_never_leads_out() {
    let (scratch, dir) = scratch();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "x").unwrap();
    symlink(outside.path(), scratch.path().join("link")).unwrap();
    symlink(outside.path().join("secret"), scratch.path().join("file")).unwrap();
    for path in ["link", "link/secret", "..", "../x", "/etc"] {
        assert!(dir.dir(path, Mounts::Cross).is_err(), "{path}");
    }
    assert!(dir.file("file").is_err());
    assert!(dir.read("file").is_err());
    assert!(dir.make_dir("link", 0o700).is_err());
    // Replacing the link must not write through it.
    dir.create("file").unwrap();
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"x");
}

#[test]
fn a_removal_takes_links_and_leaves_what_they_point_at() {
    let (scratch, dir) = scratch();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("kept"), "x").unwrap();
    std::fs::create_dir_all(scratch.path().join("tree/a/b")).unwrap();
    symlink(outside.path(), scratch.path().join("tree/a/link")).unwrap();
    symlink("/", scratch.path().join("tree/root")).unwrap();
    dir.remove_tree("tree").unwrap();
    assert!(!dir.has("tree").unwrap());
    assert!(outside.path().join("kept").exists());
    dir.remove_tree("tree").unwrap();
}

#[test]
fn a_tree_deeper_than_any_path_is_removed() {
    let (_scratch, dir) = scratch();
    let mut deepest = dir.make_dir("tree", 0o700).unwrap();
    for level in 0..500 {
        deepest.create("file").unwrap();
        let name = format!("{level}-{}", "x".repeat(100));
        deepest = deepest.make_dir(&name, 0o700).unwrap();
        deepest.path = PathBuf::from("deep");
    }
    dir.remove_tree("tree").unwrap();
    assert_eq!(dir.entries().unwrap(), []);
}

#[test]
fn a_record_is_replaced_whole_and_a_giant_one_is_refused() {
    let (scratch, dir) = scratch();
    dir.write("record", b"one").unwrap();
    std::fs::write(scratch.path().join("record.new"), "cut sho").unwrap();
    dir.write("record", b"two").unwrap();
    assert_eq!(dir.read("record").unwrap(), b"two");
    assert_eq!(dir.entries().unwrap().len(), 1);
    std::fs::write(scratch.path().join("giant"), vec![b' '; 2 << 20]).unwrap();
    assert!(matches!(dir.read("giant"), Err(Error::Unexpected { .. })));
}

#[test]
fn a_move_replaces_nothing() {
    let (_scratch, dir) = scratch();
    let other = dir.make_dir("other", 0o700).unwrap();
    dir.write("a", b"a").unwrap();
    other.write("b", b"b").unwrap();
    assert!(dir.rename("a", &other, "b").unwrap_err().is_already_there());
    dir.rename("a", &other, "a").unwrap();
    assert!(other.has("a").unwrap() && !dir.has("a").unwrap());
}

#[test]
fn a_directory_is_locked_by_one_holder_at_a_time() {
    let (scratch, dir) = scratch();
    assert!(dir.lock().unwrap());
    let second = Dir::open(scratch.path()).unwrap();
    assert!(!second.lock().unwrap());
    drop(dir);
    assert!(second.lock().unwrap());
}
