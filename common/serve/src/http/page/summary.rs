//! The top of the page: health in words, faults with links to their rows, and the dials of the last minutes.

use std::collections::{HashMap, HashSet};

use status::words::{ago, count, duration, number};
use status::{Agent, Failure, Health, INTERVAL_SECONDS, INTERVALS, List, Query, Status, expires};

use super::html::Html;
use super::table::{EXPIRY_FAULT, EXPIRY_WARNING, View};

/// The length of the history, in seconds.
#[expect(clippy::cast_precision_loss, reason = "900")]
const HISTORY_SECONDS: f64 = (INTERVAL_SECONDS * INTERVALS as u64) as f64;
/// An agent with fewer failed dials is not named: an endpoint may be the cause.
const MIN_FAILED_DIALS: u64 = 5;

/// The first word of the page.
pub(super) fn word(status: &Status) -> &'static str {
    if status.is_ready() { "Ready" } else { "Not ready" }
}

/// Adds the headline, the faults and the overview.
pub(super) fn show(html: &mut Html, view: &View<'_>) {
    let class = if word(view.status) == "Ready" { "good" } else { "bad" };
    html.raw("<p id=\"headline\" class=\"").raw(class).raw("\">").text(headline(view)).raw("</p>");
    faults(html, view);
    overview(html, view);
}

/// For instance `Ready: 3 agents, 12 connections`, or `Not ready: no agent; last: connection refused`.
pub(super) fn headline(view: &View<'_>) -> String {
    let status = view.status;
    let failed = status.health.iter().filter(|condition| !condition.ok);
    let why = |one: &Health| if one.note.is_empty() { one.name.clone() } else { one.note.clone() };
    let failed: Vec<_> = failed.map(why).collect();
    if failed.is_empty() {
        let connections = count(status.totals.connections, "connection");
        let peers = if status.is_agent() {
            count(status.totals.servers, "server")
        } else {
            count(status.totals.agents, "agent")
        };
        return format!("Ready: {peers}, {connections}");
    }
    let last = status
        .refused
        .first()
        .map(|last| format!("; last: {}: {}, {}", last.peer, last.error, ago(&last.time, &status.now)));
    format!("Not ready: {}{}", failed.join(", "), last.unwrap_or_default())
}

/// Adds a list of what needs attention, each entry with a link to its rows.
fn faults(html: &mut Html, view: &View<'_>) {
    let faults = [unhealthy(view), failing(view), failures(view), refused(view), stalls(view)];
    let faults = faults.into_iter().flatten();
    let mut faults: Vec<_> = faults.chain(refused_changes(view)).chain(expiring(view)).collect();
    if view.status.incomplete {
        let text = "Connections are missing, because a stream did not answer within 2 s.".to_owned();
        faults.push(("warn", text, "#connections".to_owned()));
    }
    if faults.is_empty() {
        html.raw("<p class=\"calm\">Nothing needs attention.</p>");
        return;
    }
    html.raw("<ul id=\"faults\" aria-label=\"Needs attention\">");
    for (class, text, link) in faults {
        html.raw("<li class=\"").raw(class).raw("\"><a href=\"").text(link).raw("\">").text(text);
        html.raw("</a></li>");
    }
    html.raw("</ul>");
}

/// A color, a sentence and its link.
type Fault = (&'static str, String, String);

fn unhealthy(view: &View<'_>) -> Option<Fault> {
    let totals = &view.status.totals;
    let query = Query { sort: "reason".to_owned(), descending: true, ..Query::default() };
    let first = view.status.agents.iter().find(|agent| agent.state != "ready");
    let first = first.map(|first| format!("{} is {}: {}", first.id, first.state, first.reason));
    let (are, join) = match totals.agents_unhealthy {
        0 => return None,
        1 => ("is", ": "),
        _ => ("are", ", for instance "),
    };
    let first = first.map(|first| format!("{join}{first}")).unwrap_or_default();
    let (some, all) = (number(totals.agents_unhealthy), count(totals.agents, "agent"));
    Some(("bad", format!("{some} of {all} {are} not ready{first}"), view.href(&query, "#agents")))
}

/// The failed dials of the history's time.
fn recent_failures<'a>(view: &'a View<'_>) -> impl Iterator<Item = &'a Failure> {
    view.status.failures.iter().filter(|one| view.age(&one.time).is_some_and(|age| age <= HISTORY_SECONDS))
}

/// An agent on this page with more failed than successful dials, at least [`MIN_FAILED_DIALS`], and with a recent failure. Other
/// agents may have taken the dials over.
fn failing(view: &View<'_>) -> Option<Fault> {
    let failed =
        |agent: &&Agent| agent.dials_failed >= MIN_FAILED_DIALS && agent.dials_failed > agent.dials_ok;
    let recently = |agent: &&Agent| view.age(&agent.last_failed).is_some_and(|age| age <= HISTORY_SECONDS);
    let failing = view.status.agents.iter().filter(failed).filter(recently);
    let most = failing.max_by_key(|agent| agent.dials_failed)?;
    let query = Query { sort: "dials_failed".to_owned(), descending: true, ..Query::default() };
    let all = count(most.dials_failed + most.dials_ok, "dial");
    let text =
        format!("{} of {all} failed at {}. Last: {}", number(most.dials_failed), most.id, most.last_failure);
    Some(("warn", text, view.href(&query, "#agents")))
}

fn failures(view: &View<'_>) -> Option<Fault> {
    let (dials, failed) = recent(view.status);
    let last = view.status.failures.first().filter(|_| failed > 0)?;
    let all = dials + failed;
    let most = share_of_most(view, failed).unwrap_or_default();
    // Most errors name the target.
    let target = if last.error.contains(&format!("{}:", last.target)) {
        String::new()
    } else {
        format!("{}: ", last.target)
    };
    let text = format!(
        "{} of {} in the last 15 minutes failed{most}. Last: {target}{}",
        number(failed),
        count(all, "dial"),
        last.error
    );
    Some(("warn", text, "#failures".to_owned()))
}

/// The target or, if more of the failures have that in common, the peer of most recent failures.
fn share_of_most(view: &View<'_>, failed: u64) -> Option<String> {
    // Not those before the history, which would make the share larger than the whole.
    let recent = || recent_failures(view).take(usize::try_from(failed).unwrap_or(usize::MAX));
    let remembered = recent().count() as u64;
    let share = |count| match count {
        count if count >= failed => "all".to_owned(),
        count if remembered < failed => format!("{} of the last {}", number(count), number(remembered)),
        count => format!("{} of them", number(count)),
    };
    let peers = recent().map(|one| &*one.peer).filter(|_| !view.status.is_agent());
    let peer = most_frequent(peers);
    let (target, times) = most_frequent(recent().map(|one| &*one.target))?;
    if times > 1 && peer.is_none_or(|(_, by_peer)| times >= by_peer) {
        let peers = recent().filter(|one| one.target == target).map(|one| &*one.peer);
        let peers: HashSet<_> = peers.filter(|peer| !peer.is_empty()).collect();
        let kind = if view.status.is_agent() { "server" } else { "agent" };
        let through = match peers.len() {
            0 => String::new(),
            1 => format!(" through {}", peers.into_iter().next().unwrap_or_default()),
            several => format!(" through {}", count(several as u64, kind)),
        };
        return Some(format!(", {} to {target}{through}", share(times)));
    }
    let (peer, times) = peer?;
    Some(format!(", {} through {peer}", share(times)))
}

/// The most frequent text that is not empty, and how often it occurs.
fn most_frequent<'a>(texts: impl Iterator<Item = &'a str>) -> Option<(&'a str, u64)> {
    let mut counts = HashMap::<&str, u64>::new();
    for text in texts.filter(|text| !text.is_empty()) {
        *counts.entry(text).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(text, count)| (*count, *text))
}

fn refused(view: &View<'_>) -> Option<Fault> {
    let last = view
        .status
        .refused
        .first()
        .filter(|last| view.age(&last.time).is_none_or(|age| age <= HISTORY_SECONDS))?;
    let what = if view.status.is_agent() {
        "An attempt to connect to a server failed".to_owned()
    } else {
        format!("The listener \u{201c}{}\u{201d} refused a peer", last.listener)
    };
    let text = format!("{what}. Last: {}: {}", last.peer, last.error);
    Some(("warn", text, "#refused".to_owned()))
}

/// All connections, the longest stall first.
fn longest_stalls() -> Query {
    let (list, sort) = (Some(List::Connections), "stalled_seconds".to_owned());
    Query { list, sort, descending: true, ..Query::default() }
}

/// The longest stall of the connections on this page.
fn stalls(view: &View<'_>) -> Option<Fault> {
    let stalled = view.status.connections.iter().filter(|one| one.stalled_seconds.is_some());
    let longest = stalled.clone().max_by(|one, two| {
        one.stalled_seconds.unwrap_or_default().total_cmp(&two.stalled_seconds.unwrap_or_default())
    })?;
    let query = longest_stalls();
    let client =
        if longest.client.is_empty() { String::new() } else { format!(", client {}", longest.client) };
    let text = format!(
        "{} on this page: the {} takes no data. Longest: {}{client}, target {}, {} {}",
        count(stalled.count() as u64, "stalled connection"),
        if view.status.is_agent() { "endpoint" } else { "client" },
        duration(longest.stalled_seconds.unwrap_or_default()),
        longest.target,
        if view.status.is_agent() { "server" } else { "agent" },
        longest.peer,
    );
    Some(("warn", text, view.href(&query, "#connections")))
}

/// Sides whose certificate files have changed and cannot be used.
fn refused_changes(view: &View<'_>) -> impl Iterator<Item = Fault> {
    view.status.refused_changes().into_iter().map(|(side, why)| {
        let text =
            format!("Changed certificate files of {side} cannot be used, the old ones stay in use: {why}");
        ("bad", text, "#certificates".to_owned())
    })
}

/// Certificates that expire soon.
fn expiring<'a>(view: &'a View<'_>) -> impl Iterator<Item = Fault> + 'a {
    view.status.certificates_by_expiry().into_iter().filter_map(|certificate| {
        let left = -view.age(&certificate.not_after)?;
        let class = if left < EXPIRY_FAULT { "bad" } else { "warn" };
        if left >= EXPIRY_WARNING {
            return None;
        }
        let when = expires(&certificate.not_after, &view.status.now);
        let when = if left < 0.0 { when } else { format!("expires {when}") };
        let (role, side) = (&certificate.role, &certificate.side);
        let text = format!("The certificate {role} at \u{201c}{side}\u{201d} {when}: {}", certificate.source);
        Some((class, text, "#certificates".to_owned()))
    })
}

/// When the next certificate expires, and which one.
fn next_to_expire(view: &View<'_>) -> Option<String> {
    let next = view.status.certificates_by_expiry().into_iter().next()?;
    let when = Some(expires(&next.not_after, &view.status.now)).filter(|when| !when.is_empty())?;
    // The flag without the file's path.
    let flag = next.source.split_whitespace().next().unwrap_or_default();
    Some(format!("{when} ({flag})"))
}

/// Dials and failures of the last 15 minutes.
fn recent(status: &Status) -> (u64, u64) {
    let sum = |sum: (u64, u64), one: &status::Interval| {
        (sum.0 + u64::from(one.dials), sum.1 + u64::from(one.failures))
    };
    status.history.iter().fold((0, 0), sum)
}

fn overview(html: &mut Html, view: &View<'_>) {
    let Status { build, totals, started, kubernetes, .. } = view.status;
    html.raw("<section id=\"overview\"><h2>Overview</h2><dl>");
    let mut fact = |name: &'static str, value: String| {
        if !value.is_empty() {
            html.raw("<div><dt>").raw(name).raw("</dt><dd>").text(value).raw("</dd></div>");
        }
    };
    fact("Version", format!("{}{}", build.version, if build.fips { " (FIPS)" } else { "" }));
    fact("Running for", view.age(started).map(duration).unwrap_or_default());
    fact("Successful dials", number(totals.dials));
    fact("Failed dials", number(totals.failed_dials));
    fact("Waiting dials", number(totals.pending_dials));
    fact("Next certificate to expire", next_to_expire(view).unwrap_or_default());
    if let Some(kubernetes) = kubernetes {
        fact("Lease", kubernetes.lease.clone());
        if view.status.is_agent() {
            fact("Servers by leases", number(kubernetes.leases_counted));
        }
        fact("Last error of the Kubernetes API", kubernetes.last_error.clone());
    }
    if view.status.connections.len() > view.query.limit {
        let query = longest_stalls();
        html.raw("<div><dt>Stalled connections</dt><dd><a href=\"").text(view.href(&query, "#connections"));
        html.raw("\">Look among all ").text(number(totals.connections)).raw("</a></dd></div>");
    }
    html.raw("</dl>");
    history(html, view.status);
    html.raw("</section>");
}

/// Adds bars: dials up, failures down, one for each interval.
fn history(html: &mut Html, status: &Status) {
    let (dials, failed) = recent(status);
    let most = status.history.iter().map(|one| one.dials.max(one.failures)).max().unwrap_or_default();
    let text = format!(
        "The last 15 minutes: {} and {}, at most {} in {INTERVAL_SECONDS} s",
        count(dials, "successful dial"),
        count(failed, "failed dial"),
        number(most.into())
    );
    html.raw("<figure><svg viewBox=\"0 0 300 40\" role=\"img\" preserveAspectRatio=\"none\" aria-label=\"");
    html.text(&text).raw("\"><path class=\"axis\" d=\"M0 28H300\"/>");
    let start = INTERVALS.saturating_sub(status.history.len());
    for (at, interval) in status.history.iter().take(INTERVALS).enumerate() {
        bar(html, "dials", start + at, interval.dials, most);
        bar(html, "failures", start + at, interval.failures, most);
    }
    html.raw("</svg><figcaption>").text(text).raw("</figcaption></figure>");
}

/// A bar of at least one unit: up to 27 above the axis at 28, or 11 below it.
fn bar(html: &mut Html, class: &'static str, at: usize, count: u32, most: u32) {
    if count == 0 {
        return;
    }
    // A single failure among many dials must be seen.
    let (room, least) = if class == "dials" { (27.0, 1.5) } else { (11.0, 4.0) };
    let height = (f64::from(count) / f64::from(most) * room).max(least);
    let y = if class == "dials" { 28.0 - height } else { 28.0 };
    html.raw("<rect class=\"").raw(class).raw("\" x=\"").text(5 * at).raw("\" y=\"").text(format!("{y:.1}"));
    html.raw("\" width=\"4\" height=\"").text(format!("{height:.1}")).raw("\"/>");
}
