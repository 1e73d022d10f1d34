//! Entries of lists, and pages of the lists that may be long: sorted by a field, filtered by a text, bounded in memory.

use std::cmp::Ordering;

use crate::{Column, List, Query};

/// An entry of a list.
pub trait Row: Sized + 'static {
    /// Its columns. The list can be sorted by those with a field.
    const COLUMNS: &'static [Column<Self>];
    /// The list in queries, if it may be long.
    const LIST: Option<List> = None;

    /// Whether an id, address, identity, target, client or error contains this text, by which the list is filtered. By
    /// default the list is not filtered.
    fn contains(&self, _text: &str) -> bool {
        true
    }

    /// The column of a field.
    fn sorted_by(field: &str) -> Option<&'static Column<Self>> {
        Self::COLUMNS.iter().find(|column| !field.is_empty() && column.sort == field)
    }
}

/// Collects the entries of one page, which are pushed in the natural order of the list.
///
/// In the natural order entries before the page need not be built ([`Page::skip`]), nor those after it ([`Page::wanted`]).
/// A sorted page looks at every entry and holds at most twice as many as precede its end.
#[derive(Debug)]
pub struct Page<R: 'static> {
    query: Query,
    sorted: Option<&'static Column<R>>,
    skip: usize,
    rows: Vec<R>,
    /// The first rows, up to the end of the page, are in order.
    is_cut: bool,
}

impl<R: Row> Page<R> {
    /// The empty page for a query. A field that the list does not have leaves it in its natural order.
    pub fn new(query: &Query) -> Self {
        let sorted = R::sorted_by(&query.sort);
        Self { sorted, skip: query.offset, rows: Vec::new(), is_cut: false, query: query.clone() }
    }

    /// How many of the next `count` entries precede the page: they need not be built or pushed.
    pub fn skip(&mut self, count: usize) -> usize {
        if self.sorted.is_some() || !self.query.filter.is_empty() {
            return 0;
        }
        let skipped = self.skip.min(count);
        self.skip -= skipped;
        skipped
    }

    /// How many entries may still be of use; 0 once the page is complete.
    pub fn wanted(&self) -> usize {
        let room = self.query.limit.saturating_sub(self.rows.len());
        match (self.sorted.is_some(), self.query.filter.is_empty()) {
            (true, _) if self.query.limit > 0 => usize::MAX,
            (_, true) => self.skip.saturating_add(room),
            (_, false) if room > 0 => usize::MAX,
            _ => 0,
        }
    }

    /// Adds the next entry.
    pub fn push(&mut self, row: R) {
        if !self.query.filter.is_empty() && !row.contains(&self.query.filter) {
            return;
        }
        if let Some(column) = self.sorted {
            let end = self.end();
            if self.is_cut && order(column, self.query.descending, &self.rows[end - 1], &row).is_le() {
                return;
            }
            self.rows.push(row);
            if self.rows.len() >= 2 * end {
                self.cut();
            }
        } else if self.skip > 0 {
            self.skip -= 1;
        } else if self.rows.len() < self.query.limit {
            self.rows.push(row);
        }
    }

    /// The page.
    pub fn finish(mut self) -> Vec<R> {
        if self.sorted.is_some() {
            self.cut();
            self.rows.drain(..self.skip.min(self.rows.len()));
        }
        self.rows
    }

    /// The number of entries up to the end of the page, at least 1.
    fn end(&self) -> usize {
        self.query.offset.saturating_add(self.query.limit).clamp(1, usize::MAX / 2)
    }

    /// Sorts, and drops entries after the page. Equal entries keep their order.
    fn cut(&mut self) {
        let Some(column) = self.sorted else { return };
        let descending = self.query.descending;
        self.rows.sort_by(|one, two| order(column, descending, one, two));
        self.rows.truncate(self.end());
        self.is_cut = true;
    }
}

fn order<R>(column: &Column<R>, descending: bool, one: &R, two: &R) -> Ordering {
    let order = (column.cell)(one).key().partial_cmp(&(column.cell)(two).key()).unwrap_or(Ordering::Equal);
    if descending { order.reverse() } else { order }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Agent;

    fn agents(count: usize) -> impl Iterator<Item = Agent> {
        let agent = |n: usize| Agent {
            id: format!("a{n:05}"),
            connections: (n * 7 % 1_000) as u64,
            ..Agent::default()
        };
        (0..count).map(agent)
    }

    fn page(query: &str, count: usize) -> (Vec<String>, usize) {
        let mut page = Page::new(&Query::parse(query).unwrap());
        let mut held = 0;
        for agent in agents(count) {
            page.push(agent);
            held = held.max(page.rows.len());
        }
        (page.finish().into_iter().map(|agent| agent.id).collect(), held)
    }

    #[test]
    fn natural_order_skips_and_stops() {
        assert_eq!(page("offset=3&limit=2", 16).0, ["a00003", "a00004"]);
        let mut page = Page::<Agent>::new(&Query::parse("offset=3&limit=2").unwrap());
        assert_eq!((page.skip(2), page.skip(2), page.skip(2), page.wanted()), (2, 1, 0, 2));
        agents(2).for_each(|agent| page.push(agent));
        assert_eq!(page.wanted(), 0);
    }

    #[test]
    fn sorted_page_holds_few_rows_of_many() {
        let (ids, held) = page("sort=-connections&offset=2&limit=3", 16_000);
        let mut all: Vec<Agent> = agents(16_000).collect();
        all.sort_by_key(|agent| std::cmp::Reverse(agent.connections));
        assert_eq!(ids, all[2..5].iter().map(|agent| agent.id.clone()).collect::<Vec<_>>());
        assert!(held <= 10, "{held}");
        assert!(page("sort=id&offset=9&limit=3", 5).0.is_empty());
    }

    #[test]
    fn filter_finds_ids_and_addresses() {
        assert_eq!(page("filter=0009&limit=2&offset=1", 100).0, ["a00090", "a00091"]);
        let agent = Agent { addresses: vec!["10.0.0.1:5".into()], ..Agent::default() };
        assert!(agent.contains("10.0.0.1") && !agent.contains("10.0.0.2"));
    }
}
