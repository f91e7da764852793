//! What a block device holds, told from its first bytes alone.

/// How many bytes [`Content::parse`] wants to see.
pub const HEAD: usize = 128 * 1024;

/// What a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing but zeros.
    Blank,
    /// An ext2, ext3 or ext4 file system of so many bytes.
    Ext4 { bytes: u64 },
    /// An XFS file system of so many bytes.
    Xfs { bytes: u64 },
    /// A Btrfs file system of so many bytes.
    Btrfs { bytes: u64 },
    /// Something else.
    Unknown,
}

impl Content {
    /// Tells the content from the first [`HEAD`] bytes.
    pub fn parse(head: &[u8]) -> Self {
        if let Some(bytes) = ext4_size(head) {
            Self::Ext4 { bytes }
        } else if let Some(bytes) = xfs_size(head) {
            Self::Xfs { bytes }
        } else if let Some(bytes) = btrfs_size(head) {
            Self::Btrfs { bytes }
        } else if head.iter().all(|byte| *byte == 0) {
            Self::Blank
        } else {
            Self::Unknown
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn ext4_size(head: &[u8]) -> Option<u64> {
    const MAGIC: u16 = 0xef53;
    const INCOMPAT_64BIT: u32 = 0x80;
    let superblock = head.get(1024..2048)?;
    if u16::from_le_bytes(array(superblock, 0x38)?) != MAGIC {
        return None;
    }
    let low = u32::from_le_bytes(array(superblock, 0x04)?);
    let wide = u32::from_le_bytes(array(superblock, 0x60)?) & INCOMPAT_64BIT != 0;
    let high = if wide { u32::from_le_bytes(array(superblock, 0x150)?) } else { 0 };
    let block = 1024_u64.checked_shl(u32::from_le_bytes(array(superblock, 0x18)?))?;
    (u64::from(high) << 32 | u64::from(low)).checked_mul(block)
}

fn xfs_size(head: &[u8]) -> Option<u64> {
    if array(head, 0)? != *b"XFSB" {
        return None;
    }
    let block = u32::from_be_bytes(array(head, 4)?);
    u64::from_be_bytes(array(head, 8)?).checked_mul(u64::from(block))
}

fn btrfs_size(head: &[u8]) -> Option<u64> {
    let superblock = head.get(64 << 10..)?;
    (array(superblock, 0x40)? == *b"_BHRfS_M").then_some(())?;
    Some(u64::from_le_bytes(array(superblock, 0x70)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ext4(low: u32, high: u32, wide: bool, log_block: u32) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[1024 + 0x38..][..2].copy_from_slice(&0xef53_u16.to_le_bytes());
        head[1024 + 0x04..][..4].copy_from_slice(&low.to_le_bytes());
        head[1024 + 0x18..][..4].copy_from_slice(&log_block.to_le_bytes());
        head[1024 + 0x60..][..4].copy_from_slice(&(u32::from(wide) * 0x80).to_le_bytes());
        head[1024 + 0x150..][..4].copy_from_slice(&high.to_le_bytes());
        head
    }

    fn xfs(block: u32, blocks: u64) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[..4].copy_from_slice(b"XFSB");
        head[4..8].copy_from_slice(&block.to_be_bytes());
        head[8..16].copy_from_slice(&blocks.to_be_bytes());
        head
    }

    fn btrfs(bytes: u64) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[(64 << 10) + 0x40..][..8].copy_from_slice(b"_BHRfS_M");
        head[(64 << 10) + 0x70..][..8].copy_from_slice(&bytes.to_le_bytes());
        head
    }

    #[test]
    fn each_content_is_told_with_its_size() {
        for (head, expected) in [
            (vec![0; HEAD], Content::Blank),
            (vec![], Content::Blank),
            ([vec![0; HEAD - 1], vec![1]].concat(), Content::Unknown),
            (ext4(256, 0, false, 2), Content::Ext4 { bytes: 1 << 20 }),
            (ext4(0, 1, true, 2), Content::Ext4 { bytes: 1 << 44 }),
            (ext4(1024, 7, false, 0), Content::Ext4 { bytes: 1 << 20 }),
            (ext4(1, 0, false, 200), Content::Unknown),
            (xfs(4096, 1 << 18), Content::Xfs { bytes: 1 << 30 }),
            (xfs(4096, u64::MAX), Content::Unknown),
            (b"XFSB".to_vec(), Content::Unknown),
            (btrfs(1 << 30), Content::Btrfs { bytes: 1 << 30 }),
            (btrfs(1 << 30)[..(64 << 10) + 0x72].to_vec(), Content::Unknown),
        ] {
            assert_eq!(Content::parse(&head), expected);
        }
    }
}
