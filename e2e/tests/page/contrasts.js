// Every text of the page against the ground behind it, by the formula of WCAG 2.
const luminance = ([red, green, blue]) => {
  const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
};
const parts = (color) => color.match(/[\d.]+/g).map(Number);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = parts(getComputedStyle(at).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const bad = [];
for (const element of document.querySelectorAll("body *:not(script):not(svg *)")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own && element.tagName !== "INPUT") continue;
  const [text, behind] = [luminance(parts(getComputedStyle(element).color)), luminance(ground(element))];
  const contrast = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
  if (contrast < 4.5) bad.push(`${element.tagName} ${element.className} ${element.textContent}: ${contrast.toFixed(2)}`);
}
return bad;
