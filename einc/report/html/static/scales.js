// Numbers as text, and as colours that can be told apart by people who see few of them.
const NS = 1e6; // per millisecond
const groups = (text) => {
  const [whole, part] = text.split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part === undefined ? "" : "." + part);
};
const formatMs = (ms) => {
  if (ms === null || ms === undefined) return "–";
  return ms >= 0.01 || ms <= 0 ? `${groups(ms.toFixed(3))} ms` : `${Number(ms.toPrecision(3))} ms`;
};
const formatTime = (ms) => {
  if (ms === 0) return "0";
  if (Math.abs(ms) >= 1000) return `${groups((ms / 1000).toFixed(2))} s`;
  if (Math.abs(ms) >= 1) return `${ms.toFixed(3)} ms`;
  if (Math.abs(ms) >= 0.001) return `${(ms * 1000).toFixed(2)} µs`;
  return `${(ms * 1e6).toFixed(0)} ns`;
};
const formatBytes = (count) => {
  let amount = count, unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB", "PiB"]) {
    if (Math.abs(amount) < (unit === "B" ? 10240 : 1024)) break;
    amount /= 1024;
    unit = larger;
  }
  if (unit === "B") return `${groups(String(count))} B`;
  return `${Number(amount.toPrecision(4))} ${unit}`;
};
const formatCount = (count, noun) => `${groups(String(count))} ${noun}${count === 1 ? "" : "s"}`;
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0)}%`;
const formatCut = (part) => {
  const cut = Object.entries(part.intervals).filter(([, parts]) => parts.length > 1).map(([name, parts]) => `${shorten(name, 30)}/${parts.length}`);
  const replicas = part.replicas || 1;
  return (cut.join(" ") || "whole") + (replicas === 1 ? "" : ` (${replicas} sites each)`);
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// Eight hues that stay apart with every kind of colour blindness (Okabe and Ito), then lighter and darker ones of them.
// A site's number stands beside its colour wherever it is used.
const HUES = [[202, 100, 35], [41, 100, 45], [164, 100, 31], [327, 45, 64], [202, 77, 63], [26, 100, 42], [56, 75, 52], [0, 0, 55]];
const siteColour = (site) => {
  const [hue, rich, light] = HUES[site % HUES.length];
  const turn = Math.floor(site / HUES.length) % 4;
  return `hsl(${hue} ${rich}% ${Math.min(82, light + [0, 18, -10, 28][turn] + (isDark() ? 6 : 0))}%)`;
};
const siteInk = (site) => {
  const light = HUES[site % HUES.length][2] + [0, 18, -10, 28][Math.floor(site / HUES.length) % 4];
  return site % HUES.length === 6 || site % HUES.length === 1 || light > 52 ? "#111" : "#fff";
};
// From little to much, by lightness alone.
const mix = (a, b, share) => {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [x, y] = [parts(a), parts(b)];
  return `rgb(${x.map((value, at) => Math.round(value + (y[at] - value) * share)).join(",")})`;
};
const heat = (share) => mix(colour("low"), colour("high"), Math.min(1, Math.max(0, share)));
// Positions of ticks at round numbers.
const findTicks = (first, last, most) => {
  const rough = (last - first) / Math.max(1, most);
  if (!(rough > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  const ticks = [];
  for (let tick = Math.ceil(first / step - 1e-9) * step; tick <= last + step * 1e-9 && ticks.length < 100; tick += step) ticks.push(tick);
  return ticks;
};
