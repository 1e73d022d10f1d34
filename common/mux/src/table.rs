//! The connections of one link, by a key that is never reused.

/// Identifies one connection of one link from the start of its dial to its end. A stale key finds nothing, even if its
/// slot is used again (invariant 3: the identity is the instance, not a number that is reused).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnKey {
    index: u32,
    generation: u32,
}

impl ConnKey {
    /// A small number, unique among the connections that live or whose local end the driver has not released: the
    /// driver's index into its own table.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Whether a slot belongs to a local end, which may outlive the connection's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Local {
    /// No local end: the slot is free once its value is removed.
    None,
    /// The driver has not released the local end.
    Held,
    /// The same, and the local end waits for its turn to discard.
    Lingering,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
    local: Local,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    live: usize,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Table { slots: Vec::new(), free: Vec::new(), live: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn insert(&mut self, value: T) -> ConnKey {
        self.live += 1;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            slot.local = Local::None;
            return ConnKey { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len()).expect("a link's connections are bounded far below 2^32");
        self.slots.push(Slot { generation: 0, value: Some(value), local: Local::None });
        ConnKey { index, generation: 0 }
    }

    pub(crate) fn get(&self, key: ConnKey) -> Option<&T> {
        let slot = self.slots.get(key.index())?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: ConnKey) -> Option<&mut T> {
        self.slot_mut(key)?.value.as_mut()
    }

    fn slot_mut(&mut self, key: ConnKey) -> Option<&mut Slot<T>> {
        self.slots.get_mut(key.index()).filter(|slot| slot.generation == key.generation)
    }

    /// Removes the value. The key stays reserved while a local end holds it.
    pub(crate) fn remove(&mut self, key: ConnKey) -> Option<T> {
        let slot = self.slot_mut(key)?;
        let value = slot.value.take()?;
        self.live -= 1;
        self.free_slot(key);
        Some(value)
    }

    /// Reserves the key for a local end until [`Table::release`].
    pub(crate) fn hold(&mut self, key: ConnKey) {
        if let Some(slot) = self.slot_mut(key) {
            slot.local = Local::Held;
        }
    }

    /// The local end is gone.
    pub(crate) fn release(&mut self, key: ConnKey) {
        if let Some(slot) = self.slot_mut(key)
            && slot.local != Local::None
        {
            slot.local = Local::None;
            self.free_slot(key);
        }
    }

    /// Marks a local end that waits for its turn to discard. Returns false if there is none, or if it waits already.
    pub(crate) fn begin_lingering(&mut self, key: ConnKey) -> bool {
        let held = self.slot_mut(key).filter(|slot| slot.local == Local::Held);
        held.map(|slot| slot.local = Local::Lingering).is_some()
    }

    /// Clears the mark. Returns false if it was not set.
    pub(crate) fn end_lingering(&mut self, key: ConnKey) -> bool {
        let waits = self.slot_mut(key).filter(|slot| slot.local == Local::Lingering);
        waits.map(|slot| slot.local = Local::Held).is_some()
    }

    /// Frees a slot without value and local end.
    fn free_slot(&mut self, key: ConnKey) {
        if let Some(slot) = self.slot_mut(key)
            && slot.value.is_none()
            && slot.local == Local::None
        {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(key.index);
        }
    }

    pub(crate) fn keys(&self) -> Vec<ConnKey> {
        let live = self.slots.iter().zip(0u32..).filter(|(slot, _)| slot.value.is_some());
        live.map(|(slot, index)| ConnKey { index, generation: slot.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing_in_a_reused_slot() {
        let mut table = Table::new();
        let old = table.insert('a');
        assert_eq!(table.remove(old), Some('a'));
        let new = table.insert('b');
        assert_eq!(old.index(), new.index(), "the slot is reused");
        assert_eq!(table.get(old), None);
        assert_eq!(table.remove(old), None);
        assert_eq!(table.get(new), Some(&'b'));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn key_is_not_reused_before_its_local_end_is_released() {
        let mut table = Table::new();
        let key = table.insert('a');
        table.hold(key);
        table.remove(key);
        assert_eq!((table.get(key), table.len()), (None, 0));
        let other = table.insert('b');
        assert_ne!(other.index(), key.index());
        assert!(table.begin_lingering(key) && !table.begin_lingering(key), "once");
        assert!(table.end_lingering(key) && !table.end_lingering(key));
        table.release(key);
        table.release(key);
        assert_eq!(table.insert('c').index(), key.index());
        assert_ne!(table.insert('d').index(), key.index(), "released once");
        assert!(!table.begin_lingering(key));
    }
}
