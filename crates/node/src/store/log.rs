//! One journal file: batches of records, each written twice and synced once.
//!
//! ```text
//! 0        header: magic, format, owner, run, capacity of a side, checksum
//! 4096     side A: batch 1, batch 2, ...
//! 4096+cap side B: the same bytes at the same places
//! ```
//!
//! A batch is a head (run, number, length, checksum of the body, checksum of the head) and a body
//! padded to whole sectors, so that no sector of a confirmed batch is ever written again.
//! The file has its full size from the start, so a lost end shows, a sync changes no metadata, and
//! a full disk cannot interrupt it. `run` is drawn anew for each file: what an earlier life left
//! in a file that is used again can never pass for a batch of this one.
//!
//! Reading tells damage from what a crash leaves. A crash can leave any part of the *last* batch
//! on either side, and it was then never confirmed. A batch that is whole on one side only, or on
//! none, with any trace of a later batch behind it, was confirmed: that is damage. A last batch
//! that is whole on one side is taken. So one wrong sector anywhere either shows or loses nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of the header, and of the unit in which sides are sized.
const PAGE: u64 = 4096;
/// What a disk writes whole.
const SECTOR: u64 = 512;
const HEAD: usize = 48;
const MAGIC: [u8; 8] = *b"conclave";
/// The format that this version writes, and the only one it reads.
pub(super) const FORMAT: u32 = 1;

/// Why a file is no journal of ours.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The system could not read it.
    Io(io::Error),
    /// It is not what was written.
    Damaged(String),
    /// It is of a format that this version does not know.
    Format(u32),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A journal file that this process began, open for more batches.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    run: u64,
    /// Bytes of a side.
    capacity: u64,
    /// The number of the next batch and its place in each side.
    next: u64,
    at: u64,
}

impl Log {
    /// Begins a journal in an empty file, with a first batch of these records.
    pub(super) fn begin<'a>(
        file: File,
        owner: u64,
        run: u64,
        capacity: u64,
        records: &(impl Iterator<Item = &'a [u8]> + Clone),
    ) -> io::Result<Self> {
        let capacity = capacity
            .max(size_of(records.clone()))
            .next_multiple_of(PAGE);
        zero(&file, capacity)?;
        Self::rewrite(file, owner, run, capacity, records)
    }

    /// Begins a journal in an empty file, with several batches and one sync for all. There must be
    /// one at least, and `capacity` must do for all of them.
    pub(super) fn begin_in_parts(
        file: File,
        owner: u64,
        run: u64,
        capacity: u64,
        batches: impl Iterator<Item = Vec<Vec<u8>>>,
    ) -> io::Result<Self> {
        let capacity = capacity.next_multiple_of(PAGE);
        zero(&file, capacity)?;
        file.write_all_at(&header(owner, run, capacity), 0)?;
        let mut log = Self {
            file,
            run,
            capacity,
            next: 1,
            at: 0,
        };
        for batch in batches {
            log.put(&batch.iter().map(Vec::as_slice))?;
        }
        log.file.sync_all()?;
        Ok(log)
    }

    /// Begins a journal in a file that has the size for this capacity already.
    fn rewrite<'a>(
        file: File,
        owner: u64,
        run: u64,
        capacity: u64,
        records: &(impl Iterator<Item = &'a [u8]> + Clone),
    ) -> io::Result<Self> {
        file.write_all_at(&header(owner, run, capacity), 0)?;
        let mut log = Self {
            file,
            run,
            capacity,
            next: 1,
            at: 0,
        };
        log.put(records)?;
        log.file.sync_all()?;
        Ok(log)
    }

    /// Begins a journal in this file, whose contents no longer matter, if they fit well.
    pub(super) fn again<'a>(
        self,
        owner: u64,
        run: u64,
        records: &(impl Iterator<Item = &'a [u8]> + Clone),
    ) -> io::Result<Option<Self>> {
        if size_of(records.clone()) > self.capacity / 2 {
            return Ok(None);
        }
        Self::rewrite(self.file, owner, run, self.capacity, records).map(Some)
    }

    /// Bytes of a side.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether a batch of these records still fits.
    pub(super) fn fits<'a>(&self, records: impl Iterator<Item = &'a [u8]>) -> bool {
        size_of(records) <= self.capacity - self.at
    }

    /// Writes one batch and syncs it.
    pub(super) fn append<'a>(
        &mut self,
        records: &(impl Iterator<Item = &'a [u8]> + Clone),
    ) -> io::Result<()> {
        self.put(records)?;
        self.file.sync_data()
    }

    fn put<'a>(&mut self, records: &(impl Iterator<Item = &'a [u8]> + Clone)) -> io::Result<()> {
        let length = length_of(records.clone());
        let size = padded(length);
        debug_assert!(
            size <= self.capacity - self.at,
            "the caller asked whether it fits"
        );
        let padding = [0; SECTOR as usize];
        let padding = &padding[..(size - HEAD as u64 - length) as usize];
        let mut sum = blake3::Hasher::new();
        for record in records.clone() {
            sum.update(&(record.len() as u64).to_le_bytes());
            sum.update(record);
        }
        sum.update(padding);
        let head = Head {
            run: self.run,
            number: self.next,
            length,
            sum: short(&sum),
        };
        for side in 0..2 {
            let mut out = Gather::new(&self.file, PAGE + side * self.capacity + self.at);
            out.add(&head.bytes())?;
            for record in records.clone() {
                out.add(&(record.len() as u64).to_le_bytes())?;
                out.add(record)?;
            }
            out.add(padding)?;
            out.flush()?;
        }
        self.next += 1;
        self.at += size;
        Ok(())
    }
}

/// Gives a file its full size, so that a full disk shows now and a lost end later.
fn zero(file: &File, capacity: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let end = PAGE + 2 * capacity;
    let mut at = 0;
    while at < end {
        let part = zeros.len().min((end - at) as usize);
        file.write_all_at(&zeros[..part], at)?;
        at += part as u64;
    }
    Ok(())
}

/// The bytes of all records of a journal file, handed out in order.
pub(super) fn read(
    file: &File,
    owner: u64,
    mut each: impl FnMut(&[u8]) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let (run, capacity) = read_header(file, owner)?;
    let mut at = 0;
    let mut next = 1;
    let mut halved = None;
    loop {
        let a = read_batch(file, PAGE, capacity, at, run, next)?;
        let b = read_batch(file, PAGE + capacity, capacity, at, run, next)?;
        let whole = a.is_some() && a == b;
        let Some(body) = a.or(b) else { break };
        if let Some(batch) = halved {
            return Err(damaged(format!("batch {batch} is whole in one copy only")));
        }
        if !whole {
            halved = Some(next);
        }
        split(&body, &mut each)?;
        at += padded(body.len() as u64);
        next += 1;
    }
    if next == 1 {
        return Err(damaged("its first batch is not whole".into()));
    }
    for side in 0..2 {
        let trace = trace_behind(file, PAGE + side * capacity, capacity, at, run)?;
        // The head of the batch being written when the process ended may be there, alone.
        if let Some((number, place)) = trace
            && (halved.is_some() || number != next || place != at)
        {
            let batch = halved.unwrap_or(next);
            return Err(damaged(format!(
                "batch {batch} is not whole, batch {number} is there"
            )));
        }
    }
    Ok(())
}

fn read_header(file: &File, owner: u64) -> Result<(u64, u64), ReadError> {
    let size = file.metadata()?.len();
    if size < PAGE {
        return Err(damaged(format!("the journal has only {size} bytes")));
    }
    let mut page = [0; PAGE as usize];
    file.read_exact_at(&mut page, 0)?;
    if page[..8] != MAGIC {
        return Err(damaged("the journal does not begin like one".into()));
    }
    let format = u32::from_le_bytes(part(&page, 8));
    let found = u64::from_le_bytes(part(&page, 16));
    let run = u64::from_le_bytes(part(&page, 24));
    let capacity = u64::from_le_bytes(part(&page, 32));
    if page != header_of(format, found, run, capacity) {
        return Err(damaged("the header of the journal is wrong".into()));
    }
    if format != FORMAT {
        return Err(ReadError::Format(format));
    }
    if found != owner {
        return Err(damaged("the journal is that of another node".into()));
    }
    let whole = capacity
        .checked_mul(2)
        .and_then(|sides| sides.checked_add(PAGE));
    if whole != Some(size) {
        let whole = whole.unwrap_or(u64::MAX);
        return Err(damaged(format!(
            "the journal has {size} bytes instead of {whole}"
        )));
    }
    Ok((run, capacity))
}

/// The body of a batch, if it is whole on this side.
fn read_batch(
    file: &File,
    side: u64,
    capacity: u64,
    at: u64,
    run: u64,
    number: u64,
) -> io::Result<Option<Vec<u8>>> {
    if capacity - at < SECTOR {
        return Ok(None);
    }
    let mut bytes = [0; HEAD];
    file.read_exact_at(&mut bytes, side + at)?;
    let Some(head) = Head::parse(&bytes, run) else {
        return Ok(None);
    };
    let room = capacity - at - HEAD as u64;
    if head.number != number || head.length > room {
        return Ok(None);
    }
    let mut body = vec![0; padded(head.length) as usize - HEAD];
    file.read_exact_at(&mut body, side + at + HEAD as u64)?;
    let mut sum = blake3::Hasher::new();
    sum.update(&body);
    if short::<16>(&sum) != head.sum {
        return Ok(None);
    }
    body.truncate(head.length as usize);
    Ok(Some(body))
}

/// The last head of this run that stands in a side from `at` on, with its place.
fn trace_behind(
    file: &File,
    side: u64,
    capacity: u64,
    at: u64,
    run: u64,
) -> io::Result<Option<(u64, u64)>> {
    let mut found = None;
    let mut chunk = vec![0; 1 << 20];
    let mut from = at;
    while from < capacity {
        let part = chunk.len().min((capacity - from) as usize);
        file.read_exact_at(&mut chunk[..part], side + from)?;
        for (index, sector) in chunk[..part].chunks(SECTOR as usize).enumerate() {
            if let Some(head) = Head::parse(sector, run) {
                found = Some((head.number, from + index as u64 * SECTOR));
            }
        }
        from += part as u64;
    }
    Ok(found)
}

fn split(
    mut body: &[u8],
    each: &mut impl FnMut(&[u8]) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    while !body.is_empty() {
        let record = body.split_first_chunk::<8>().and_then(|(length, rest)| {
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        let Some((record, rest)) = record else {
            return Err(damaged("a batch ends in the middle of a record".into()));
        };
        each(record)?;
        body = rest;
    }
    Ok(())
}

fn damaged(what: String) -> ReadError {
    ReadError::Damaged(what)
}

/// What stands before the body of a batch.
struct Head {
    run: u64,
    number: u64,
    length: u64,
    sum: [u8; 16],
}

impl Head {
    fn bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&self.run.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.sum);
        let sum = short::<8>(blake3::Hasher::new().update(&bytes[..40]));
        bytes[40..].copy_from_slice(&sum);
        bytes
    }

    /// The head of this run that these bytes begin with, if they do.
    fn parse(bytes: &[u8], run: u64) -> Option<Self> {
        if bytes.len() < HEAD || bytes[..8] != run.to_le_bytes() {
            return None;
        }
        let head = Self {
            run,
            number: u64::from_le_bytes(part(bytes, 8)),
            length: u64::from_le_bytes(part(bytes, 16)),
            sum: part(bytes, 24),
        };
        (head.bytes() == bytes[..HEAD]).then_some(head)
    }
}

fn header(owner: u64, run: u64, capacity: u64) -> [u8; PAGE as usize] {
    header_of(FORMAT, owner, run, capacity)
}

fn header_of(format: u32, owner: u64, run: u64, capacity: u64) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    page[..8].copy_from_slice(&MAGIC);
    page[8..12].copy_from_slice(&format.to_le_bytes());
    page[16..24].copy_from_slice(&owner.to_le_bytes());
    page[24..32].copy_from_slice(&run.to_le_bytes());
    page[32..40].copy_from_slice(&capacity.to_le_bytes());
    let sum = short::<16>(blake3::Hasher::new().update(&page[..40]));
    page[40..56].copy_from_slice(&sum);
    page
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

fn short<const N: usize>(sum: &blake3::Hasher) -> [u8; N] {
    let mut short = [0; N];
    sum.finalize_xof().fill(&mut short);
    short
}

fn length_of<'a>(records: impl Iterator<Item = &'a [u8]>) -> u64 {
    records.map(|record| 8 + record.len() as u64).sum()
}

/// Bytes of a batch in the file.
fn padded(length: u64) -> u64 {
    (HEAD as u64 + length).next_multiple_of(SECTOR)
}

/// Bytes that a batch of these records takes on a side.
pub(super) fn size_of<'a>(records: impl Iterator<Item = &'a [u8]>) -> u64 {
    padded(length_of(records))
}

/// Gathers small pieces into large writes.
struct Gather<'f> {
    file: &'f File,
    at: u64,
    buffer: Vec<u8>,
}

impl<'f> Gather<'f> {
    fn new(file: &'f File, at: u64) -> Self {
        Self {
            file,
            at,
            buffer: Vec::new(),
        }
    }

    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= 1 << 20 {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.at)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}
