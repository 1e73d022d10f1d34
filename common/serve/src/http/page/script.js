// Loads the page again every five seconds and replaces its contents. Everything else works without it.
"use strict";
(() => {
  const INTERVAL = 5000;
  const main = () => document.getElementById("main");
  const pause = document.getElementById("pause");
  const refreshed = document.getElementById("refreshed");
  const news = document.getElementById("news");
  let paused = false;
  let last = Date.now();

  // The place of an element among its section's links and regions, which a new copy of the section has too.
  const STOPS = "a, [tabindex]";
  const place = (element) => {
    const section = element.closest("[id]:not(a)");
    if (!section) return null;
    const scope = section.closest("section") || section;
    return { id: scope.id, at: [...scope.querySelectorAll(STOPS)].indexOf(element) };
  };
  const find = ({ id, at }) => {
    const scope = document.getElementById(id);
    return scope && (at === -1 ? scope : scope.querySelectorAll(STOPS)[at]);
  };

  const replace = (page) => {
    const old = main();
    const fresh = page.getElementById("main");
    const focused = old.contains(document.activeElement) ? place(document.activeElement) : null;
    const scrolled = new Map([...old.querySelectorAll(".scroll")].map((one) => [one.parentElement.id, one.scrollLeft]));
    const [x, y] = [window.scrollX, window.scrollY];
    const headline = document.getElementById("headline").textContent;
    old.replaceChildren(...fresh.childNodes);
    for (const one of old.querySelectorAll(".scroll")) one.scrollLeft = scrolled.get(one.parentElement.id) || 0;
    if (focused) find(focused)?.focus({ preventScroll: true });
    window.scrollTo(x, y);
    document.title = page.title;
    const now = document.getElementById("headline").textContent;
    if (now !== headline) news.textContent = now;
  };

  const isReading = () => {
    const selection = document.getSelection();
    return document.hidden || (!selection.isCollapsed && main().contains(selection.anchorNode));
  };

  const refresh = async () => {
    if (paused || isReading()) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(2 * INTERVAL) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused || isReading()) return;
      replace(page);
      last = Date.now();
      refreshed.textContent = "";
    } catch {
      refreshed.textContent = `No answer for ${Math.round((Date.now() - last) / 1000)} s`;
    }
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    refreshed.textContent = paused ? "Paused" : "";
    refresh();
  });
  const turn = async () => {
    await refresh();
    setTimeout(turn, INTERVAL);
  };
  setTimeout(turn, INTERVAL);
})();
