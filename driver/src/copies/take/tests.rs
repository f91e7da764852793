use std::sync::{Arc, Mutex};

use dunnage_csi::agent::Head;
use dunnage_csi::agent::export_response::Part;
use dunnage_host::stream::{Attributes, Entry, Kind, Sink as _};

use super::super::send::{Sender, Stop};
use super::*;

/// Remembers what came, in words.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<String>>>);

impl Receive for Kept {
    fn step(&mut self, step: Step) -> dunnage_host::Result<()> {
        let words = match step {
            Step::Begin(entry) => format!("begin {}", String::from_utf8_lossy(&entry.name)),
            Step::End(_) => "end".to_owned(),
        };
        self.0.lock().unwrap().push(words);
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> dunnage_host::Result<()> {
        self.0.lock().unwrap().push(format!("{} at {offset}", bytes.len()));
        Ok(())
    }

    fn position(&self) -> Position {
        Position::default()
    }

    fn is_whole(&self) -> bool {
        self.0.lock().unwrap().last().is_some_and(|last| last == "end")
    }

    fn persist(&self) -> dunnage_host::Result<()> {
        Ok(())
    }

    fn finish(&self) -> dunnage_host::Result<()> {
        Ok(())
    }
}

const FILES: u64 = 3;
const SLICES: u64 = 5;
const SLICE: u64 = 200 << 10;

/// Walks three files of a tree, as an engine does, from where on the other end wants it.
fn walk(names: [&str; 3], after: Option<Cursor>) -> std::result::Result<Vec<Part>, Stop> {
    let mut parts = Vec::new();
    let head = Head { identity: "these".to_owned(), ..Head::default() };
    let mut sender = Sender::new(head, after, |part| {
        parts.push(part);
        Ok(())
    })?;
    for name in names {
        sender.step(Step::Begin(Entry { name: name.into(), kind: Kind::File, link: None }))?;
        if let Some(from) = sender.data_from() {
            for slice in (0..SLICES).map(|slice| slice * SLICE).filter(|slice| *slice >= from) {
                sender.data(slice, &vec![7; usize::try_from(SLICE).unwrap()])?;
            }
        }
        sender.step(Step::End(Attributes::default()))?;
    }
    sender.step(Step::End(Attributes::default()))?;
    sender.finish()?;
    Ok(parts)
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const ALL: u64 = FILES * SLICES * SLICE;

fn taker(kept: &Kept, at: Cursor) -> Taker {
    Taker::new(Box::new(kept.clone()), at, ALL)
}

fn pieces(parts: &[Part]) -> Vec<Piece> {
    let piece = |part: &Part| if let Part::Piece(piece) = part { Some(piece.clone()) } else { None };
    parts.iter().filter_map(piece).collect()
}

fn is_resumed(parts: &[Part]) -> bool {
    matches!(&parts[0], Part::Head(head) if head.resumed)
}

#[test]
fn a_copy_cut_after_any_piece_goes_on_there_and_comes_to_the_same() {
    let whole = walk(NAMES, None).unwrap();
    assert!(!is_resumed(&whole));
    let Some(Part::Tail(tail)) = whole.last() else { panic!("no tail") };
    let sent = pieces(&whole);
    assert!(sent.len() > 4, "{}", sent.len());
    for cut in 1..=sent.len() {
        let kept = Kept::default();
        let mut first = taker(&kept, Cursor::start("these"));
        for piece in &sent[..cut] {
            first.piece(piece).unwrap();
        }
        let (cursor, _) = first.persist().unwrap();
        let rest = walk(NAMES, Some(cursor.clone())).unwrap();
        assert!(is_resumed(&rest), "{cut}");
        assert_eq!(pieces(&rest).len(), sent.len() - cut, "nothing is sent twice");
        let mut second = taker(&kept, cursor);
        for piece in pieces(&rest) {
            second.piece(&piece).unwrap();
        }
        let Some(Part::Tail(again)) = rest.last() else { panic!("no tail") };
        assert_eq!(again, tail, "{cut}");
        second.check(again).unwrap();
        let came = kept.0.lock().unwrap().clone();
        let data = came.iter().filter(|item| item.contains(" at ")).count();
        assert_eq!((came.len(), data), (22, 15), "{came:?}");
    }
}

#[test]
fn other_data_or_another_order_begin_at_the_start() {
    let kept = Kept::default();
    let mut taker = taker(&kept, Cursor::start("these"));
    for piece in &pieces(&walk(NAMES, None).unwrap())[..3] {
        taker.piece(piece).unwrap();
    }
    let (cursor, _) = taker.persist().unwrap();
    let other = Cursor { identity: "those".to_owned(), ..cursor.clone() };
    assert!(!is_resumed(&walk(NAMES, Some(other)).unwrap()));
    assert!(matches!(walk(["b", "a", "c"], Some(cursor.clone())), Err(Stop::Disorder)));
    let beyond = Cursor { steps: 99, ..cursor };
    assert!(matches!(walk(NAMES, Some(beyond)), Err(Stop::Disorder)));
}

#[test]
fn what_is_not_as_it_was_sent_is_refused() {
    let sent = pieces(&walk(NAMES, None).unwrap());
    let fresh = |left| Taker::new(Box::new(Kept::default()), Cursor::start("these"), left);
    let refused = |result: Result<u64>| {
        assert!(matches!(result, Err(Error::Corrupt(_))), "{result:?}");
    };
    let mut flipped = sent[0].clone();
    *flipped.body.last_mut().unwrap() ^= 1;
    refused(fresh(ALL).piece(&flipped));
    let nonsense = vec![0xff; 10];
    refused(fresh(ALL).piece(&Piece { checksum: checksum(&nonsense), body: nonsense }));
    refused(fresh(SLICE).piece(&sent[0]));
    // A piece that is missing, or comes twice, shows at the end.
    for order in [vec![0, 2, 3], vec![0, 0, 1, 2, 3]] {
        let mut taker = fresh(2 * ALL);
        for piece in order {
            taker.piece(&sent[piece]).unwrap();
        }
        let chain = walk(NAMES, None).unwrap().pop();
        let Some(Part::Tail(tail)) = chain else { panic!("no tail") };
        assert!(matches!(taker.check(&tail), Err(Error::Corrupt(_))));
    }
    let mut early = fresh(ALL);
    early.piece(&sent[0]).unwrap();
    let (cursor, _) = early.persist().unwrap();
    assert!(matches!(early.check(&Tail { chain: cursor.chain }), Err(Error::Corrupt(_))), "in the middle");
}
