//! A reader that never passes the end of the file nor of the bytes at hand, and tells the two apart.
use crate::Error;

/// Most header bytes that are read before tensor data: 262,144 tokens with merges take 12 MB; the rest is head room.
pub const MAX_HEADER_BYTES: u64 = 128 << 20;

/// Why reading stopped.
pub(super) enum Stop {
    /// The file goes on; this many bytes from its start are needed at least.
    More(u64),
    /// The file is bad.
    Bad(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Bad(error)
    }
}

/// Reads little-endian values from the prefix of a file.
pub(super) struct Cursor<'a> {
    prefix: &'a [u8],
    file_bytes: u64,
    pos: usize,
}

impl<'a> Cursor<'a> {
    /// `prefix` is the start of a file of `file_bytes` bytes.
    pub(super) fn new(prefix: &'a [u8], file_bytes: u64) -> Self {
        let len = usize::try_from(file_bytes).unwrap_or(usize::MAX).min(prefix.len());
        Self { prefix: &prefix[..len], file_bytes, pos: 0 }
    }

    /// A second cursor at this one's place, to look ahead.
    pub(super) fn at_same_place(&self) -> Self {
        Self { ..*self }
    }

    /// Offset of the next byte.
    pub(super) fn pos(&self) -> u64 {
        self.pos as u64
    }

    /// Checks that `count` items of at least `each` bytes are in the file and at hand, so that they may be allocated.
    pub(super) fn need(&self, count: u64, each: u64, what: &str) -> Result<(), Stop> {
        let end = count.checked_mul(each).and_then(|bytes| bytes.checked_add(self.pos()));
        match end.filter(|&end| end <= self.file_bytes) {
            None => Err(Stop::Bad(self.truncated(count, each, what))),
            Some(end) if end > MAX_HEADER_BYTES => Err(Stop::Bad(header_too_large(end, what))),
            Some(end) if end > self.prefix.len() as u64 => Err(Stop::More(end)),
            Some(_) => Ok(()),
        }
    }

    /// The next `len` bytes.
    pub(super) fn bytes(&mut self, len: u64, what: &str) -> Result<&'a [u8], Stop> {
        self.need(len, 1, what)?;
        // `need` has shown that they are in the prefix, so the length fits usize.
        let (start, end) = (self.pos, self.pos + len as usize);
        self.pos = end;
        Ok(&self.prefix[start..end])
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Stop> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N as u64, what)?);
        Ok(out)
    }

    /// A 32-bit number.
    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Stop> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A 64-bit number.
    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Stop> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string as its bytes: 64-bit length, then that many bytes.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a [u8], Stop> {
        let len = self.u64(what)?;
        self.bytes(len, what)
    }

    /// A string that names something and so must be UTF-8.
    pub(super) fn name(&mut self, what: &str) -> Result<&'a str, Stop> {
        let offset = self.pos();
        std::str::from_utf8(self.string(what)?).map_err(|_| {
            let message = format!("The {what} at byte {offset} is not UTF-8.");
            Stop::Bad(Error::new("gguf.bad_utf8", message).with("what", what).with("offset", offset))
        })
    }

    fn truncated(&self, count: u64, each: u64, what: &str) -> Error {
        let left = self.file_bytes.saturating_sub(self.pos());
        let message = format!(
            "The file has {left} bytes after byte {}, too few for the {what}: it is cut off or corrupt.",
            self.pos
        );
        Error::new("gguf.truncated", message)
            .with("what", what)
            .with("offset", self.pos())
            .with("file_bytes", self.file_bytes)
            .with("expected_bytes", count.saturating_mul(each))
            .with("got_bytes", left)
    }
}

fn header_too_large(end: u64, what: &str) -> Error {
    let message =
        format!("The file's header reaches byte {end} at least (its {what}); {MAX_HEADER_BYTES} are allowed.");
    limit(message, what, MAX_HEADER_BYTES, end)
}

/// A count or size that no sane file has.
pub(super) fn limit(message: String, what: &str, limit: u64, got: u64) -> Error {
    Error::new("gguf.limit_exceeded", message).with("what", what).with("limit", limit).with("got", got)
}
