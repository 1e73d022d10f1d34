//! The order in which sources are read: two queues of connections whose source may have bytes.
//!
//! A source that has just become readable is *fresh* and precedes sources that have already been read in this burst: a
//! short exchange does not wait behind a thousand bulk transfers. After eight fresh sources in a row a busy one has its
//! turn, so that fresh ones cannot starve it.

use std::collections::VecDeque;

use crate::table::ConnKey;

/// How many fresh connections in a row are read before a busy one.
const FRESH_IN_A_ROW: u32 = 8;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Rings {
    fresh: VecDeque<ConnKey>,
    busy: VecDeque<ConnKey>,
    streak: u32,
}

impl Rings {
    /// The caller ensures that no connection is in the rings twice.
    pub(crate) fn push_fresh(&mut self, key: ConnKey) {
        self.fresh.push_back(key);
    }

    pub(crate) fn push_busy(&mut self, key: ConnKey) {
        self.busy.push_back(key);
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.busy.len()
    }

    /// Removes the entries that `keep` rejects.
    pub(crate) fn retain(&mut self, keep: impl Fn(ConnKey) -> bool) {
        self.fresh.retain(|key| keep(*key));
        self.busy.retain(|key| keep(*key));
    }

    /// The next entry. Its connection may have ended: the caller checks.
    pub(crate) fn pop(&mut self) -> Option<ConnKey> {
        if (self.streak < FRESH_IN_A_ROW || self.busy.is_empty())
            && let Some(key) = self.fresh.pop_front()
        {
            self.streak += 1;
            return Some(key);
        }
        self.streak = 0;
        self.busy.pop_front().or_else(|| self.fresh.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    #[test]
    fn fresh_goes_first_but_does_not_starve_busy() {
        let mut table = Table::new();
        let keys: Vec<ConnKey> = (0..20).map(|n| table.insert(n)).collect();
        let mut rings = Rings::default();
        rings.push_busy(keys[0]);
        for key in &keys[1..] {
            rings.push_fresh(*key);
        }
        let order: Vec<usize> = std::iter::from_fn(|| rings.pop()).map(ConnKey::index).collect();
        assert_eq!(&order[..8], &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(order[8], 0, "the busy one after eight fresh ones");
        assert_eq!(order.len(), 20);
    }
}
