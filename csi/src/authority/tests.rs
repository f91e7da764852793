//! The bytes are those that gRPC-Go sends to a registration socket, cut in every place.

use tokio::io::AsyncReadExt as _;

use super::*;

const PATH: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Flocal-reg.sock";

/// A string literal, not Huffman coded.
fn literal(text: &[u8]) -> Vec<u8> {
    let mut out = vec![u8::try_from(text.len()).expect("short")];
    out.extend(text);
    out
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// `:method POST`, an authority with incremental indexing, and a field with a name of its own.
fn block(authority: &[u8]) -> Vec<u8> {
    [&[0x83, 0x41][..], &literal(authority), &[0x40], &literal(b"grpc-timeout"), &literal(b"1S")].concat()
}

fn connection(authority: &[u8]) -> Vec<u8> {
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, &[]),
        frame(HEADERS, END_HEADERS, &block(authority)),
        frame(0, 1, b"\0\0\0\0\0"),
    ]
    .concat()
}

#[test]
fn a_path_becomes_localhost_wherever_the_bytes_are_cut() {
    let (sent, expected) = (connection(PATH), connection(LOCALHOST));
    for cut in 0..=sent.len() {
        let (mut mender, mut out) = (Mender::default(), Vec::new());
        mender.feed(&sent[..cut], &mut out);
        mender.feed(&sent[cut..], &mut out);
        assert_eq!(out, expected, "cut at {cut}");
    }
}

#[test]
fn padding_and_priority_stay_around_the_mended_block() {
    let flags = END_HEADERS | PADDED | PRIORITY;
    let payload = |authority| [&[3, 0, 0, 0, 0, 16][..], &block(authority), &[0, 0, 0]].concat();
    let mended = mend_frame(&frame(HEADERS, flags, &payload(PATH)));
    assert_eq!(mended, Some(frame(HEADERS, flags, &payload(LOCALHOST))));
}

#[test]
fn a_block_without_a_literal_authority_is_as_it_was() {
    for block in [
        vec![0x83, 0x86, 0xbe],
        vec![0x3f, 0xe1, 0x1f, 0x83],
        [&[0x44][..], &literal(b"/pluginregistration.Registration/GetInfo")].concat(),
        [&[0x41][..], &literal(b"short")].concat(),
    ] {
        assert_eq!(mend_block(&block), Some(block));
    }
}

#[test]
fn a_damaged_frame_goes_to_the_server_as_it_is() {
    for block in [vec![0x41, 0x7f], vec![0x41, 20, b'x'], vec![0x7f, 0xff, 0xff, 0xff, 0xff, 0xff]] {
        let sent = frame(HEADERS, END_HEADERS, &block);
        assert_eq!(mend_frame(&sent), None, "{block:?}");
        let (mut mender, mut out) = (Mender { state: State::FrameHeader, held: Vec::new() }, Vec::new());
        mender.feed(&sent, &mut out);
        assert_eq!(out, sent);
    }
}

#[tokio::test]
async fn a_reader_gets_the_mended_bytes_and_the_end() {
    let sent = connection(PATH);
    let mut out = Vec::new();
    Mended::new(&sent[..]).read_to_end(&mut out).await.expect("read");
    assert_eq!(out, connection(LOCALHOST));
}
