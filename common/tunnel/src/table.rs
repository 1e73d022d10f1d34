//! The connections of one link, by a key that is never reused.

/// Identifies one connection of one link from the start of its dial to its end. A stale key finds nothing, even if its
/// slot is used again (invariant 3: the identity is the instance, not a number that is reused).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnKey {
    index: u32,
    generation: u32,
}

impl ConnKey {
    /// A small number, unique among the live connections: the shell's index into its own table.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
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
            return ConnKey { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len()).expect("a link's connections are bounded far below 2^32");
        self.slots.push(Slot { generation: 0, value: Some(value) });
        ConnKey { index, generation: 0 }
    }

    pub(crate) fn get(&self, key: ConnKey) -> Option<&T> {
        let slot = self.slots.get(key.index())?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: ConnKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index())?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, key: ConnKey) -> Option<T> {
        let slot = self.slots.get_mut(key.index())?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        self.live -= 1;
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnKey, &T)> {
        self.slots.iter().zip(0u32..).filter_map(|(slot, index)| {
            slot.value.as_ref().map(|value| (ConnKey { index, generation: slot.generation }, value))
        })
    }

    pub(crate) fn keys(&self) -> Vec<ConnKey> {
        self.iter().map(|(key, _)| key).collect()
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
}
