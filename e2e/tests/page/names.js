// What assistive programs need: one first heading, no level left out, captions, heads with a scope, labels.
const bad = [];
const check = (selector, is, fault) => {
  for (const one of document.querySelectorAll(selector)) if (!is(one)) bad.push(`${fault}: ${one.outerHTML.slice(0, 200)}`);
};
check("table", (table) => table.caption && table.caption.textContent.trim(), "table without caption");
check("th", (head) => head.scope === "col" || head.scope === "row", "head without scope");
check("thead th", (head) => head.textContent.trim(), "column without title");
check("tbody tr", (row) => row.querySelectorAll("th[scope=row]").length === 1, "row without a head");
check("input:not([type=hidden])", (input) => input.labels.length === 1, "input without label");
check("a, button", (one) => one.textContent.trim(), "control without text");
check("svg", (svg) => svg.getAttribute("role") === "img" && svg.getAttribute("aria-label"), "picture without text");
check("[tabindex='0']", (one) => document.getElementById(one.getAttribute("aria-labelledby")), "region without name");
check("[aria-labelledby]", (one) => document.getElementById(one.getAttribute("aria-labelledby")), "label that is missing");
const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((one) => Number(one.tagName[1]));
if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) bad.push("not one first heading");
if (levels.some((level, at) => at > 0 && level > levels[at - 1] + 1)) bad.push("a level of headings is left out");
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
if (new Set(ids).size !== ids.length) bad.push("an id is used twice");
if (document.documentElement.lang !== "en") bad.push("no language");
return bad;
