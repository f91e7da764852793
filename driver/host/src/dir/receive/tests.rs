use rustix::fs::getxattr;

use super::*;
use crate::dir::copy::tests::{inode, listing, plant, scratch};
use crate::stream::Sink;

/// An item as it comes.
#[derive(Clone, Debug)]
enum Sent {
    Step(Step),
    Data(u64, Vec<u8>),
}

#[derive(Default)]
struct Stream(Vec<Sent>);

impl Sink for Stream {
    type Error = Error;

    fn step(&mut self, step: Step) -> Result<()> {
        self.0.push(Sent::Step(step));
        Ok(())
    }

    fn data_from(&self) -> Option<u64> {
        Some(0)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.push(Sent::Data(offset, bytes.to_vec()));
        Ok(())
    }
}

fn take(receiver: &mut TreeReceiver, items: &[Sent]) -> Result<()> {
    for item in items {
        match item.clone() {
            Sent::Step(step) => receiver.step(step)?,
            Sent::Data(offset, bytes) => receiver.data(offset, &bytes)?,
        }
    }
    Ok(())
}

fn begin(name: &[u8], kind: Kind) -> Sent {
    Sent::Step(Step::Begin(Entry { name: name.to_vec(), kind, link: None }))
}

/// A file with several names.
fn first(name: &[u8], number: u64) -> [Sent; 2] {
    let entry = Entry { name: name.to_vec(), kind: Kind::File, link: Some(number) };
    [Sent::Step(Step::Begin(entry)), end()]
}

fn end() -> Sent {
    Sent::Step(Step::End(Attributes::default()))
}

#[test]
fn a_tree_arrives_with_all_it_has_wherever_the_stream_is_cut() {
    let (scratch, dir) = scratch();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    let _socket = plant(&from, &scratch.path().join("outside"));
    let sparse = File::create(from.join("sub/sparse")).unwrap();
    sparse.write_all_at(b"in the middle", 100 << 10).unwrap();
    sparse.set_len(200 << 10).unwrap();
    let mut stream = Stream::default();
    dir.dir("from", Mounts::Refuse).unwrap().send_tree(&mut stream).unwrap();
    let Stream(items) = stream;
    let source = listing(&from);
    assert!(items.len() > 30, "{items:?}");
    for cut in 0..=items.len() {
        dir.make_dir("to", 0o700).unwrap();
        let mut first = TreeReceiver::new(&dir, "to", &Position::default()).unwrap();
        take(&mut first, &items[..cut]).unwrap();
        let at = first.position();
        assert_eq!(first.is_whole(), cut == items.len());
        // What came after the last checkpoint comes again.
        take(&mut first, &items[cut..items.len().min(cut + 7)]).unwrap();
        drop(first);
        let mut second = TreeReceiver::new(&dir, "to", &at).unwrap();
        take(&mut second, &items[cut..]).unwrap();
        assert!(second.is_whole());
        second.finish().unwrap();
        // Killed before anybody noted that: it ends once more.
        TreeReceiver::new(&dir, "to", &second.position()).unwrap().finish().unwrap();
        assert_eq!(source, listing(&to), "cut at {cut}: {:?}", items.get(cut));
        assert_eq!(inode(&to.join("plain")), inode(&to.join("sub/again")), "cut at {cut}");
        let mut value = [0; 16];
        let size = getxattr(to.join("sub"), "user.dir", &mut value).unwrap();
        assert_eq!(&value[..size], b"kept too");
        let left: Vec<_> = dir.entries().unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(left, ["from", "outside", "to"]);
        dir.remove_tree("to").unwrap();
    }
}

#[test]
fn holes_are_not_sent() {
    let (scratch, dir) = scratch();
    let sparse = File::create(scratch.path().join("from/sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(b"x", 1 << 29).unwrap();
    let mut stream = Stream::default();
    dir.dir("from", Mounts::Refuse).unwrap().send_tree(&mut stream).unwrap();
    let bytes = stream.0.iter().map(|item| if let Sent::Data(_, bytes) = item { bytes.len() } else { 0 });
    assert!(bytes.sum::<usize>() <= 64 << 10);
}

#[test]
fn nothing_that_comes_leads_out_of_the_tree() {
    let link = |target: &[u8]| Kind::Symlink(target.to_vec());
    let evil = [
        vec![begin(b"..", Kind::Directory)],
        vec![begin(b".", Kind::Directory)],
        vec![begin(b"", Kind::File)],
        vec![begin(b"../outside", Kind::File)],
        vec![begin(b"/outside", Kind::File)],
        vec![begin(b"a/b", Kind::File)],
        vec![begin(b"a\0b", Kind::File)],
        vec![begin(&[b'x'; 256], Kind::File)],
        // Through a symlink that it has made itself.
        vec![begin(b"out", link(b"..")), end(), begin(b"out/outside", Kind::File)],
        vec![begin(b"out", link(b"../outside")), Sent::Data(0, b"evil".to_vec())],
        vec![begin(b"out", link(b"..")), begin(b"in", Kind::File)],
        vec![begin(b"out", link(b""))],
        vec![begin(b"f", Kind::File), begin(b"g", Kind::File)],
        vec![begin(b"f", Kind::Again(7))],
        // Something else has taken the place of a file, or of its directory, meanwhile.
        [&first(b"f", 7)[..], &[begin(b"f", Kind::Directory), end(), begin(b"g", Kind::Again(7))]].concat(),
        [
            &[begin(b"d", Kind::Directory)][..],
            &first(b"outside", 7),
            &[end(), begin(b"d", link(b"..")), end(), begin(b"g", Kind::Again(7))],
        ]
        .concat(),
        vec![begin(b"f", Kind::Special { mode: 0, major: 0, minor: 0 })],
        vec![begin(b"f", Kind::Special { mode: 0o040_000, major: 0, minor: 0 })],
        vec![Sent::Data(0, b"evil".to_vec())],
        vec![begin(b"d", Kind::Directory), Sent::Data(0, b"evil".to_vec())],
        vec![begin(b"f", Kind::File), Sent::Data(u64::MAX, b"evil".to_vec())],
        vec![end(), end()],
        vec![end(), begin(b"late", Kind::File)],
        std::iter::repeat_n(begin(b"d", Kind::Directory), DEPTH + 1).collect(),
    ];
    for items in evil {
        let (scratch, dir) = scratch();
        let outside = scratch.path().join("outside");
        std::fs::write(&outside, "secret").unwrap();
        dir.make_dir("to", 0o700).unwrap();
        let mut receiver = TreeReceiver::new(&dir, "to", &Position::default()).unwrap();
        assert!(take(&mut receiver, &items).is_err(), "{items:?}");
        assert_eq!(std::fs::read(&outside).unwrap(), b"secret");
        let left: Vec<_> = dir.entries().unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(left, ["from", "outside", "to", "to.places"], "{items:?}");
    }
}

/// What leads to it is what was sent, from however deep it lies to however deep its other names do.
#[test]
fn a_file_is_found_by_all_its_names_wherever_they_lie() {
    let (scratch, dir) = scratch();
    let from = scratch.path().join("from");
    for (deep, name) in [(150, "x".repeat(100)), (3, "y".to_owned())] {
        let mut deepest = dir.dir("from", Mounts::Refuse).unwrap();
        for _ in 0..deep {
            deepest = deepest.make_dir(&name, 0o700).unwrap();
        }
        std::fs::write(from.join(format!("first-{deep}")), deep.to_string()).unwrap();
        for (to, again) in [(&deepest, "deep"), (&deepest, "beside")] {
            linkat(&dir, format!("from/first-{deep}"), to, again, AtFlags::empty()).unwrap();
        }
    }
    let mut stream = Stream::default();
    dir.dir("from", Mounts::Refuse).unwrap().send_tree(&mut stream).unwrap();
    dir.make_dir("to", 0o700).unwrap();
    let mut receiver = TreeReceiver::new(&dir, "to", &Position::default()).unwrap();
    take(&mut receiver, &stream.0).unwrap();
    receiver.finish().unwrap();
    for deep in [150, 3] {
        let found = std::fs::metadata(scratch.path().join(format!("to/first-{deep}"))).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&found), 3);
    }
    dir.remove_tree("to").unwrap();
    dir.remove_tree("from").unwrap();
}

/// A name that was a symlink, or whose directory somebody has replaced by one, is never gone through.
#[test]
fn a_symlink_in_the_way_is_replaced_and_not_followed() {
    let (scratch, dir) = scratch();
    let outside = scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    dir.make_dir("to", 0o700).unwrap();
    let mut receiver = TreeReceiver::new(&dir, "to", &Position::default()).unwrap();
    let target = outside.to_str().unwrap().as_bytes().to_vec();
    let items = [
        begin(b"name", Kind::Symlink(target)),
        end(),
        begin(b"name", Kind::Directory),
        begin(b"file", Kind::File),
        Sent::Data(0, b"inside".to_vec()),
        Sent::Step(Step::End(Attributes { mode: 0o644, size: 6, ..Attributes::default() })),
        end(),
    ];
    take(&mut receiver, &items).unwrap();
    assert_eq!(std::fs::read(scratch.path().join("to/name/file")).unwrap(), b"inside");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    // A position that leads through one is refused, too.
    std::os::unix::fs::symlink(&outside, scratch.path().join("to/link")).unwrap();
    for directories in
        [vec![b"link".to_vec()], vec![b"..".to_vec()], vec![b"name".to_vec(), b"../..".to_vec()]]
    {
        let at = Position { directories, ..Position::default() };
        assert!(TreeReceiver::new(&dir, "to", &at).is_err(), "{at:?}");
    }
}
