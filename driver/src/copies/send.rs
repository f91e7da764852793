//! The sending end of a copy: items are put together to pieces, from where the other end has come to.

use dunnage_csi::agent::export_response::Part;
use dunnage_csi::agent::{Head, Item, Piece, PieceBody, Tail};
use dunnage_host::stream::{Sink, Step};
use prost::Message as _;

use super::cursor::{Cursor, checksum};
use super::wire;
use crate::error::Error;

/// A piece that has this much is sent.
const FULL: usize = 512 << 10;
/// What an item takes beside its data, about.
const ITEM: usize = 64;

/// Why sending ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The data are not walked in the order in which they were: it has to begin at the start.
    Disorder,
    /// Nobody takes what is sent.
    Gone,
    Failed(Error),
}

impl From<dunnage_host::Error> for Stop {
    fn from(error: dunnage_host::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Takes items and gives parts of a stream to `out`.
pub(crate) struct Sender<F> {
    at: Cursor,
    /// Where the other end is, until the walk has come there.
    until: Option<Cursor>,
    head: Option<Head>,
    items: Vec<Item>,
    bytes: usize,
    out: F,
}

impl<F: FnMut(Part) -> Result<(), Stop>> Sender<F> {
    /// Goes on after a cursor, if that is of these data.
    pub(crate) fn new(head: Head, after: Option<Cursor>, out: F) -> Result<Self, Stop> {
        let at = Cursor::start(&head.identity);
        let until = after.filter(|after| after.identity == head.identity);
        let head = Head { resumed: until.is_some(), ..head };
        let mut sender = Self { at, until, head: Some(head), items: Vec::new(), bytes: 0, out };
        sender.arrive()?;
        Ok(sender)
    }

    /// Begins to send if the walk has come to where the other end is.
    fn arrive(&mut self) -> Result<(), Stop> {
        if let Some(until) = self.until.take_if(|until| until.steps == self.at.steps) {
            if until.order != self.at.order {
                return Err(Stop::Disorder);
            }
            self.at = until;
        }
        match self.head.take_if(|_| self.until.is_none()) {
            Some(head) => (self.out)(Part::Head(head)),
            None => Ok(()),
        }
    }

    fn put(&mut self, item: Item, bytes: usize) -> Result<(), Stop> {
        self.items.push(item);
        self.bytes += bytes + ITEM;
        if self.bytes < FULL { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), Stop> {
        if self.items.is_empty() {
            return Ok(());
        }
        let body = PieceBody { items: std::mem::take(&mut self.items) }.encode_to_vec();
        self.bytes = 0;
        let checksum = checksum(&body);
        self.at.piece(&checksum);
        (self.out)(Part::Piece(Piece { body, checksum }))
    }

    /// After the last item.
    pub(crate) fn finish(mut self) -> Result<(), Stop> {
        if self.until.is_some() {
            return Err(Stop::Disorder);
        }
        self.flush()?;
        (self.out)(Part::Tail(Tail { chain: self.at.chain }))
    }
}

impl<F: FnMut(Part) -> Result<(), Stop>> Sink for Sender<F> {
    type Error = Stop;

    fn step(&mut self, step: Step) -> Result<(), Stop> {
        let begins = matches!(step, Step::Begin(_));
        let item = wire::step(step);
        let bytes = item.encoded_len();
        let sends = self.until.is_none();
        if begins {
            self.at.began(&item.encode_to_vec());
        } else {
            self.at.ended();
        }
        if sends { self.put(item, bytes) } else { self.arrive() }
    }

    fn data_from(&self) -> Option<u64> {
        self.until.is_none().then_some(self.at.offset)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Stop> {
        self.at.offset = offset + bytes.len() as u64;
        self.put(wire::data(offset, bytes), bytes.len())
    }
}
