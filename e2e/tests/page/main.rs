//! The status page of both programs in a real Chromium. `hack/check page` runs it; the variable `SCREENSHOTS` names a folder
//! for pictures.

mod browser;
mod scene;

use anyhow::{Context, Result, ensure};
use e2e::http1::get;
use serde_json::json;

use crate::browser::{ENTER, SIZES, TAB};
use crate::scene::{Scene, keep};

/// The text of an element that has a contrast below WCAG's AA, with its colors; an empty list is good.
const CONTRASTS: &str = include_str!("contrasts.js");
/// Elements without a name for screen readers, and tables without caption or heads.
const NAMES: &str = include_str!("names.js");

#[tokio::test]
async fn page_is_readable_at_both_widths_light_and_dark() -> Result<()> {
    let (scene, browser) = Scene::with_browser().await?;
    for size in SIZES {
        for dark in [false, true] {
            browser.look(size, dark).await?;
            for (program, url) in [("server", &scene.server), ("agent", &scene.agent)] {
                browser.open(url).await?;
                let bad = browser.run(CONTRASTS).await?;
                assert_eq!(bad, json!([]), "{program} {size:?} dark: {dark}");
                let overflow =
                    "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
                assert_eq!(browser.run(overflow).await?, 0, "{program} {size:?} scrolls to the side");
                let scheme = if dark { "dark" } else { "light" };
                keep(&format!("{program}-{}-{scheme}.png", size.0), &browser.screenshot().await?)?;
                if size == SIZES[0] {
                    let wide = "for (const name of document.querySelectorAll('#agents tbody th')) \
                        name.textContent = 'ip-10-0-12-34.eu-central-1.compute.internal'; \
                        return [...document.querySelectorAll('.scroll')] \
                        .filter(one => one.scrollWidth > one.clientWidth).map(one => one.parentElement.id)";
                    assert_eq!(
                        browser.run(wide).await?,
                        json!([]),
                        "{program}: tables are wider than the window"
                    );
                }
            }
        }
    }
    assert_eq!(browser.console().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn controls_and_tables_have_names() -> Result<()> {
    let (scene, browser) = Scene::with_browser().await?;
    for url in [&scene.server, &scene.agent] {
        browser.open(url).await?;
        assert_eq!(browser.run(NAMES).await?, json!([]), "{url}");
        // Chromium's own computation of names and roles.
        let tree = browser.devtools("Accessibility.getFullAXTree", json!({})).await?;
        let nodes = tree["nodes"].as_array().context("no accessibility tree")?;
        let of = |role: &str| nodes.iter().filter(|node| node["role"]["value"] == role).collect::<Vec<_>>();
        for role in
            ["table", "button", "link", "searchbox", "image", "columnheader", "rowheader", "navigation"]
        {
            let unnamed =
                |node: &&&serde_json::Value| node["name"]["value"].as_str().unwrap_or_default().is_empty();
            let unnamed: Vec<_> = of(role).iter().filter(unnamed).map(ToString::to_string).collect();
            assert!(unnamed.is_empty(), "{role}: {unnamed:?}");
        }
        // An agent has five tables if all connections came to others.
        assert!(of("table").len() >= 5 && of("columnheader").len() > 15 && !of("rowheader").is_empty());
        assert_eq!(
            (of("main").len(), of("banner").len(), of("search").len(), of("image").len()),
            (1, 1, 1, 1)
        );
    }
    Ok(())
}

#[tokio::test]
async fn page_is_used_by_keyboard() -> Result<()> {
    let (_scene, browser) = Scene::with_browser().await?;
    let focused = "return document.activeElement.textContent.trim()";
    browser.press(&[TAB]).await?;
    assert_eq!(browser.run(focused).await?, "Skip to the status");
    let visible =
        "const box = document.activeElement.getBoundingClientRect(); return box.left >= 0 && box.top >= 0";
    assert_eq!(browser.run(visible).await?, true, "the skip link is visible while it has the focus");
    browser.press(&[ENTER, TAB]).await?;
    let inside = "return document.getElementById('main').contains(document.activeElement)";
    assert_eq!(browser.run(inside).await?, true, "the next stop after the skip link is in the status");

    browser.run("document.getElementById('filter').focus()").await?;
    let mut order = Vec::new();
    for _ in 0..60 {
        browser.press(&[TAB]).await?;
        let name = browser.run(focused).await?;
        let outline = "return getComputedStyle(document.activeElement).outlineStyle";
        assert_eq!(browser.run(outline).await?, "solid", "{name} shows that it has the focus");
        order.push(name.as_str().unwrap_or_default().to_owned());
        if order.last().is_some_and(|name| name == "Dials failed") {
            break;
        }
    }
    let heads: Vec<_> = order.iter().skip_while(|name| *name != "Agent").map(String::as_str).collect();
    assert_eq!(heads, ["Agent", "State", "Connections", "Dials ok", "Dials failed"], "{order:?}");
    assert!(order.iter().take(3).eq(["Apply", "Refresh", "Pause"]), "{order:?}");
    browser.press(&[ENTER]).await?;
    browser.wait("return location.search === '?sort=-dials_failed'").await?;
    let sorted = "const head = document.querySelector('#agents [aria-sort=descending]'); return head && head.innerText";
    assert_eq!(
        browser.run(sorted).await?.as_str().map(|text| text.trim_end_matches(" ↓")),
        Some("Dials failed")
    );
    let first = "return [...document.querySelectorAll('#agents tbody tr')].map(row => Number(row.children[4].innerText))";
    let failed = browser.run(first).await?;
    assert_eq!(failed[0], 1, "the agent that fails is first: {failed}");
    assert_eq!(browser.console().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn page_refreshes_itself_and_keeps_focus_and_place() -> Result<()> {
    let (scene, browser) = Scene::with_browser().await?;
    browser.look(SIZES[1], false).await?;
    browser.open(&scene.server).await?;
    let prepare = "document.querySelector('#agents .scroll').scrollLeft = 60; window.scrollTo(0, 300); \
        document.querySelectorAll('#agents th a')[1].focus({preventScroll: true}); \
        window.before = document.querySelector('#agents tbody').firstChild; \
        window.place = document.querySelector('#agents .scroll').scrollLeft";
    browser.run(prepare).await?;
    let dialed =
        "const text = document.querySelector('figcaption').innerText; return text.includes('2 failed dials')";
    ensure!(scene.pair.frontend().dial("127.0.0.1:1").await.is_err());
    browser.wait(dialed).await?;
    let kept = "return [!window.before.isConnected, document.activeElement.innerText, window.scrollY, window.place > 0, \
        document.querySelector('#agents .scroll').scrollLeft === window.place]";
    assert_eq!(browser.run(kept).await?, json!([true, "State", 300, true, true]));

    // A paused page stays as it is.
    browser
        .run("document.getElementById('pause').click(); window.before = document.getElementById('headline')")
        .await?;
    assert_eq!(browser.run("return document.getElementById('pause').textContent").await?, "Resume");
    browser.run("window.ticks = 0; setInterval(() => window.ticks++, 1000)").await?;
    browser.wait("return window.ticks >= 6").await?;
    assert_eq!(browser.run("return window.before.isConnected").await?, true);
    browser.run("document.getElementById('pause').click()").await?;
    browser.wait("return !window.before.isConnected").await?;
    assert_eq!(browser.console().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn page_tells_that_the_program_is_gone() -> Result<()> {
    let (mut scene, browser) = Scene::with_browser().await?;
    scene.pair.server_mut().process.kill()?;
    browser.wait("return document.getElementById('refreshed').textContent.startsWith('No answer for ')").await
}

#[tokio::test]
async fn page_works_without_scripts() -> Result<()> {
    let (scene, browser) = Scene::with_browser().await?;
    browser.scripts(false).await?;
    browser.open(&scene.server).await?;
    // WebDriver's own scripts would not run either: the clicks are keys, the page is read as a tree.
    let shown = async || {
        let tree = browser.devtools("DOM.getDocument", json!({})).await?;
        let id = tree["root"]["nodeId"].clone();
        let html = browser.devtools("DOM.getOuterHTML", json!({"nodeId": id})).await?;
        anyhow::Ok(html["outerHTML"].as_str().context("no page")?.to_owned())
    };
    let page = shown().await?;
    assert!(page.contains("id=\"pause\" type=\"button\" hidden"), "a button without effect is hidden");
    // Skip link, filter: its text, and its form by Enter.
    browser.press(&[TAB, TAB, "n", "o", "d", "e", "-", "2", ENTER]).await?;
    let filtered = e2e::wait::until("the filtered page", e2e::wait::DEADLINE, || async {
        shown().await.ok().filter(|page| page.contains("value=\"node-2\""))
    });
    let filtered = filtered.await?;
    assert!(filtered.contains(">ipv4=10.0.0.2<") && !filtered.contains(">ipv4=10.0.0.3<"));
    assert_eq!(browser.console().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn policy_forbids_other_scripts() -> Result<()> {
    let (scene, browser) = Scene::with_browser().await?;
    let policy = get(scene.pair.server().admin, "/").await?.head;
    ensure!(
        policy
            .field("content-security-policy")
            .is_some_and(|policy| policy.starts_with("default-src 'none'"))
    );
    assert_eq!(browser.console().await?, Vec::<String>::new());
    browser.run("const bad = document.createElement('script'); bad.textContent = 'window.ran = 1'; document.body.append(bad)").await?;
    assert_eq!(browser.run("return window.ran === undefined").await?, true);
    ensure!(
        browser.console().await?.iter().any(|line| line.contains("Content Security Policy")),
        "a violation is seen"
    );
    Ok(())
}
