//! Semaphores: as many locks as there are slots.
//!
//! The slots of semaphore `NAME` are the exclusive locks `NAME~1`, `NAME~2` and so on. So its
//! bound is as hard as a lock: never more holders than slots. All callers must name the same
//! number of slots; whoever names more sees more slots than the others.

use conclave_protocol::id::Name;

/// The slot of a semaphore as a lock: `NAME~SLOT`, counted from 1.
pub fn slot_name(name: &[u8], slot: u32) -> Name {
    let mut bytes = name.to_vec();
    bytes.push(b'~');
    bytes.extend_from_slice(slot.to_string().as_bytes());
    Name::new(bytes)
}

/// All slots of a semaphore, as locks.
pub fn slot_names(name: &[u8], slots: u32) -> Vec<Name> {
    (1..=slots).map(|slot| slot_name(name, slot)).collect()
}

/// Which slot a lock is, if it is one.
pub fn slot_of(name: &Name) -> Option<u32> {
    let bytes = name.bytes();
    let place = bytes.iter().rposition(|byte| *byte == b'~')?;
    let digits = std::str::from_utf8(&bytes[place + 1..]).ok()?;
    let slot: u32 = digits.parse().ok().filter(|slot| *slot > 0)?;
    (digits == slot.to_string()).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_named_and_found_again() {
        let names = slot_names(b"pool~x", 12);
        assert_eq!(names[11].bytes(), b"pool~x~12");
        for (place, name) in names.iter().enumerate() {
            assert_eq!(slot_of(name), Some(place as u32 + 1));
        }
        for other in ["pool", "pool~", "pool~0", "pool~01", "pool~+1", "pool~1a"] {
            assert_eq!(slot_of(&Name::new(other)), None, "{other}");
        }
    }
}
