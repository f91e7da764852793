use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Changed inputs a kind: a second or so. The fuzz targets try millions.
const ROUNDS: usize = 20_000;

/// A generator that gives the same numbers every time (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).expect("it is below a usize")
    }
}

/// One of the examples, changed in a few places: bytes, and pieces of this and other examples.
fn changed(examples: &[&[u8]], numbers: &mut Numbers) -> Vec<u8> {
    const TELLING: &[u8] = b"\0\n\\/.-=:,%\"{}[] 0aF\xff";
    let mut text = examples[numbers.below(examples.len())].to_vec();
    for _ in 0..numbers.below(6) {
        let at = numbers.below(text.len() + 1);
        let until = (at + numbers.below(20)).min(text.len());
        match numbers.below(5) {
            0 => drop(text.drain(at..until)),
            1 => text.insert(at, TELLING[numbers.below(TELLING.len())]),
            2 => text.insert(at, numbers.next().to_le_bytes()[0]),
            3 => text.truncate(at),
            _ => {
                let other = examples[numbers.below(examples.len())];
                let from = numbers.below(other.len() + 1);
                let to = (from + numbers.below(40)).min(other.len());
                text.splice(at..until, other[from..to].iter().copied());
            }
        }
    }
    text
}

/// Feeds the examples and what can be made of them, and tells which broke the check.
fn feed(examples: &[&[u8]], check: impl Fn(&[u8])) {
    let mut numbers = Numbers(7);
    let made = (0..ROUNDS).map(|_| changed(examples, &mut numbers));
    let all = examples.iter().map(|example| example.to_vec()).chain(made);
    for input in all {
        let checked = catch_unwind(AssertUnwindSafe(|| check(&input)));
        assert!(checked.is_ok(), "broken by {:?}", String::from_utf8_lossy(&input));
    }
}

fn text(check: impl Fn(&str)) -> impl Fn(&[u8]) {
    move |bytes| check(&String::from_utf8_lossy(bytes))
}

const VOLUME: &str = "0123456789abcdef-0123456789abcdef0123456789abcdef";
const INLINE: &str = "0123456789abcdef-inline-0123456789abcdef0123456789abcdef";
const SNAPSHOT: &str = "0123456789abcdef-snap-0123456789abcdef0123456789abcdef";
const GROUP: &str = "0123456789abcdef-group-0123456789abcdef0123456789abcdef";

#[test]
fn an_id_is_one_plain_name_whatever_is_asked() {
    let kubelets = format!("csi-{}", "0123456789abcdef".repeat(4));
    let good = [VOLUME, INLINE, SNAPSHOT, "0123456789abcdef", &kubelets];
    assert!(is_id::<GroupId>(GROUP));
    assert!(is_id::<VolumeId>(VOLUME) && is_id::<VolumeId>(INLINE) && is_id::<SnapshotId>(SNAPSHOT));
    assert!(is_id::<PoolId>(good[3]) && is_id::<InlineId>(good[4]));
    let examples =
        [VOLUME, INLINE, SNAPSHOT, GROUP, good[3], good[4], "../../etc", "inline-", "-snap-", "-group-"];
    feed(&examples.map(str::as_bytes), text(ids));
}

#[test]
fn parameters_are_taken_or_refused_by_name() {
    let examples = [
        "allocation=sparse\nrequireLimit=true",
        "requireLimit=false\ncsi.storage.k8s.io/pvc/name=data",
        "size=1.5Gi\nreserve=5%\nratio=2.25",
        "options=noatime,discard=async,compress=zstd:3,data=ordered,allocsize=64k",
        "options=dev,suid,bind,remount,loop,usrjquota=x,errors=panic,subvol=/",
        "90%",
        "18446744073709551616",
        "7Ei",
        "100.00",
    ];
    feed(&examples.map(str::as_bytes), text(parameters));
}

#[test]
fn every_line_of_mounts_is_read_or_named() {
    let examples: [&[u8]; 3] = [
        b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n",
        b"40 35 7:3 / /var/lib/a\\040b\\134c ro,relatime shared:7 master:2 - xfs /dev/loop3 rw\n41 35 0:4 / /t rw - tmpfs none rw\n",
        b"1 1 4294967295:4294967295 / / rw - a b c",
    ];
    let before = mountinfo::parse(examples[1]).expect("an example");
    assert_eq!(before.len(), 2);
    feed(&examples, mountinfo);
}

#[test]
fn what_is_read_as_a_record_is_written_as_the_same() {
    let volume = format!(
        r#"{{"id":"{VOLUME}","name":"pvc-1","capacityBytes":7,"content":{{"type":"image","fsType":"ext4","format":"never","allocation":"sparse"}},"publishedNode":"n1","source":{{"type":"volume","id":"{VOLUME}"}}}}"#
    );
    let inline = format!(
        r#"{{"id":"{INLINE}","name":"csi-0","capacityBytes":7,"content":{{"type":"directory"}},"inline":{{"pod":"a/b","target":"pods/1/mount"}}}}"#
    );
    let snapshot = format!(
        r#"{{"id":"{SNAPSHOT}","name":"s","sourceVolumeId":"{VOLUME}","sizeBytes":1,"created":2,"content":{{"type":"block"}},"made":"copy","source":"inUse"}}"#
    );
    let member = snapshot.replace(r#""made""#, &format!(r#""group":"{GROUP}","made""#));
    let group = format!(r#"{{"id":"{GROUP}","name":"g","created":2,"snapshots":["{SNAPSHOT}"]}}"#);
    let marker = r#"{"format":1,"poolId":"0123456789abcdef","backendUid":"u"}"#;
    assert!(
        serde_json::from_str::<Record>(&volume).is_ok() && serde_json::from_str::<Record>(&inline).is_ok()
    );
    assert!(
        serde_json::from_str::<Snapshot>(&snapshot).is_ok()
            && serde_json::from_str::<Snapshot>(&member).is_ok()
    );
    assert!(serde_json::from_str::<Group>(&group).is_ok());
    let mut superblock = vec![0; 4096];
    superblock[1024 + 0x38..1024 + 0x3a].copy_from_slice(&0xef53_u16.to_le_bytes());
    let examples = [&volume, &inline, &snapshot, &member, &group, marker].map(str::as_bytes);
    feed(&[&examples[..], &[b"XFSB\0\0\x10\0", &superblock, &[0; 512]]].concat(), records);
}
