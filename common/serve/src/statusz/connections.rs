//! The page of live connections, which the tasks of the streams own.

use std::time::Duration;

use status::{Connection, MAX_LIMIT, Page, Query};
use tokio::time::{Instant, timeout_at};

/// How long streams may take to tell their connections; a document without the rest is incomplete.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Collects the page that `query` asks for. Each stream comes with the number of its connections. `ask` asks one for at
/// most this many (the third argument) of its connections after the first ones (the second) before it returns the future
/// of the answer.
///
/// Streams before and after a page in the natural order are not asked. Streams with as many connections together as a page
/// has at most are asked together, and the last answer is awaited first: a switch between threads for each of 16,000
/// streams would take half a second. No turn of a stream's task is long. Returns whether entries are missing.
pub async fn connections<S: Clone, F: Future<Output = Vec<Connection>>>(
    streams: Vec<(usize, S)>,
    query: &Query,
    ask: impl Fn(S, usize, usize) -> F,
) -> (Vec<Connection>, bool) {
    let mut page = Page::new(query);
    let deadline = Instant::now() + ANSWERS_WITHIN;
    let mut streams = streams.into_iter();
    // The connections of a stream that the answers before did not have room for.
    let mut rest = None;
    loop {
        let (mut asked, mut expected) = (Vec::new(), 0);
        while expected < page.wanted().min(MAX_LIMIT) {
            let next = rest
                .take()
                .or_else(|| streams.next().map(|(count, stream)| (page.skip(count), count, stream)));
            let Some((at, count, stream)) = next else { break };
            let limit = (page.wanted() - expected).min(MAX_LIMIT).min(count - at);
            if limit > 0 {
                asked.push(ask(stream.clone(), at, limit));
                expected += limit;
                rest = Some((at + limit, count, stream)).filter(|(at, ..)| *at < count);
            }
        }
        if asked.is_empty() {
            return (page.finish(), false);
        }
        let mut answers = Vec::with_capacity(asked.len());
        for rows in asked.into_iter().rev() {
            answers.push(timeout_at(deadline, rows).await);
        }
        let incomplete = answers.iter().any(Result::is_err);
        answers.into_iter().rev().flatten().flatten().for_each(|row| page.push(row));
        if incomplete {
            return (page.finish(), true);
        }
    }
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
        assert!(asked < 400, "none long after the page is complete: {asked}");
    }

    #[tokio::test(start_paused = true)]
    async fn stream_that_does_not_answer_leaves_the_page_incomplete() {
        let streams = vec![(1, true), (1, false), (1, true)];
        let ask = |answers: bool, _, _| async move {
            if !answers {
                std::future::pending::<()>().await;
            }
            vec![Connection::default()]
        };
        let (rows, incomplete) = connections(streams, &Query::default(), ask).await;
        assert_eq!((rows.len(), incomplete), (2, true));
    }

    /// Otherwise each of 16,000 streams costs a switch between threads.
    #[tokio::test(start_paused = true)]
    async fn streams_of_a_page_are_asked_together() {
        let asked = AtomicUsize::new(0);
        let ask = |(), _, _| {
            asked.fetch_add(1, Ordering::Relaxed);
            async {
                if asked.load(Ordering::Relaxed) < 100 {
                    std::future::pending::<()>().await;
                }
                vec![Connection::default()]
            }
        };
        let (rows, incomplete) = connections(vec![(1, ()); 100], &Query::default(), ask).await;
        assert_eq!((rows.len(), incomplete), (100, false));
    }
}
