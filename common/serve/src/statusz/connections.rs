//! The page of live connections, which the tasks of the streams own.

use std::time::Duration;

use status::{Connection, MAX_LIMIT, Page, Query};
use tokio::time::{Instant, timeout_at};

/// How long streams may take to tell their connections; a document without the rest is incomplete.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Collects the page that `query` asks for. Each stream comes with the number of its connections; `ask` asks one for at
/// most this many (the third argument) of its connections after the first ones (the second).
///
/// Streams before and after a page in the natural order are not asked. Streams are asked one after another, each for as
/// many connections as a page has at most, so that no turn of a stream's task is long. Returns whether entries are missing.
pub async fn connections<S: Clone, F: Future<Output = Vec<Connection>>>(
    streams: Vec<(usize, S)>,
    query: &Query,
    ask: impl Fn(S, usize, usize) -> F,
) -> (Vec<Connection>, bool) {
    let mut page = Page::new(query);
    let deadline = Instant::now() + ANSWERS_WITHIN;
    for (count, stream) in streams {
        let mut at = page.skip(count);
        while at < count && page.wanted() > 0 {
            let limit = page.wanted().min(MAX_LIMIT);
            let Ok(rows) = timeout_at(deadline, ask(stream.clone(), at, limit)).await else {
                return (page.finish(), true);
            };
            at += limit;
            rows.into_iter().for_each(|row| page.push(row));
        }
        if page.wanted() == 0 {
            break;
        }
    }
    (page.finish(), false)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A page over 16,000 streams with 50,000 connections: its rows, the streams asked, and the rows built.
    async fn page(query: &str) -> (Vec<Connection>, usize, usize) {
        let streams =
            (0..16_000).map(|stream| (if stream % 8 == 0 { 18 } else { 1 }, stream)).collect::<Vec<_>>();
        assert_eq!(streams.iter().map(|(count, _)| count).sum::<usize>(), 50_000);
        let (asked, built) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ask = |stream: usize, skip: usize, limit: usize| {
            let count = if stream.is_multiple_of(8) { 18 } else { 1 };
            let row = |at: usize| Connection {
                peer: format!("a{stream:05}"),
                queued: at as u64,
                ..Connection::default()
            };
            let rows: Vec<_> = (skip..count).take(limit).map(row).collect();
            asked.fetch_add(1, Ordering::Relaxed);
            built.fetch_add(rows.len(), Ordering::Relaxed);
            async move { rows }
        };
        let (rows, incomplete) = connections(streams, &Query::parse(query).unwrap(), ask).await;
        assert!(!incomplete);
        (rows, asked.into_inner(), built.into_inner())
    }

    #[tokio::test]
    async fn page_in_natural_order_builds_only_its_rows() {
        for offset in [0, 9, 25_000, 49_900] {
            let (rows, asked, built) = page(&format!("offset={offset}&limit=100")).await;
            assert_eq!(rows.len(), 100, "{offset}");
            assert!(asked <= 100 && built == 100, "{offset}: {asked} streams, {built} rows");
        }
        let (one, ..) = page("offset=25&limit=1").await;
        let (two, ..) = page("offset=24&limit=2").await;
        assert_eq!(one[0], two[1]);
        assert!(page("offset=50000").await.0.is_empty());
    }

    #[tokio::test]
    async fn sorted_or_filtered_page_asks_each_stream_at_most_once() {
        let (rows, asked, built) = page("sort=-queued&limit=3").await;
        assert_eq!((rows.len(), rows[0].queued, asked, built), (3, 17, 16_000, 50_000));
        let (rows, asked, _) = page("filter=a00016&limit=5&offset=2").await;
        assert_eq!((rows.len(), rows[0].queued), (5, 2));
        assert_eq!(asked, 17, "none after the page is complete");
    }

    #[tokio::test(start_paused = true)]
    async fn stream_that_does_not_answer_leaves_the_page_incomplete() {
        let streams = vec![(1, true), (1, false)];
        let ask = |answers: bool, _, _| async move {
            if !answers {
                std::future::pending::<()>().await;
            }
            vec![Connection::default()]
        };
        let (rows, incomplete) = connections(streams, &Query::default(), ask).await;
        assert_eq!((rows.len(), incomplete), (1, true));
    }
}
