// The machine as its file describes it: sites on a circle, links between them, switches and shared paths as hubs.
const FIELD = { width: 540, height: 470 };

const placeSites = (count) => {
  const [cx, cy] = [FIELD.width / 2, FIELD.height / 2 - 6], radius = count > 24 ? 205 : 178;
  return Array.from({ length: count }, (_, site) => {
    if (count === 1) return [cx, cy];
    const turn = (2 * Math.PI * site) / count - Math.PI / 2 + (count === 2 ? Math.PI / 2 : 0);
    return [cx + 1.14 * radius * Math.cos(turn), cy + radius * Math.sin(turn)];
  });
};
const baseName = (name) => name.replace(/ (?:(?:out|in) \d+|\d+>\d+)$/, "");

const drawMachine = () => {
  const count = machine.sites.length, places = placeSites(count), size = count > 48 ? 9 : count > 24 ? 12 : count > 12 ? 16 : 21;
  const picture = svg("svg", { viewBox: `0 0 ${FIELD.width} ${FIELD.height}`, width: "100%", role: "img", "aria-label": `The machine ${shorten(machine.name, 60)}: ${formatCount(count, "site")}, ${formatCount(machine.resources.length, "link")}` });
  const center = [FIELD.width / 2, FIELD.height / 2 - 6];
  const hubs = new Map(), lines = [];
  const bases = [...new Set(machine.resources.filter((one) => one.shape === "out" || one.shape === "in").map((one) => baseName(one.name)))];
  bases.forEach((base, at) => hubs.set(base, [center[0], center[1] + (at - (bases.length - 1) / 2) * 74]));
  const fastest = Math.max(...machine.resources.map((one) => one.gbs), 1);
  const paths = machine.resources.filter((one) => one.shape === "path");
  machine.resources.forEach((resource, r) => {
    const rate = 1 + 3 * (resource.gbs / fastest);
    const add = (way, extra = {}) => {
      const line = svg("path", { d: way, fill: "none", "stroke-width": rate, "stroke-linecap": "round", stroke: "var(--line)", ...extra });
      lines.push({ line, resource: r, rate });
      picture.append(line);
    };
    if (resource.shape === "link") {
      const [[ax, ay], [bx, by]] = resource.pairs[0].map((site) => places[site]);
      const long = Math.hypot(bx - ax, by - ay) || 1, off = 4 + 0.05 * long;
      add(`M${ax},${ay} Q${(ax + bx) / 2 - ((by - ay) / long) * off},${(ay + by) / 2 + ((bx - ax) / long) * off} ${bx},${by}`);
    } else if (resource.shape === "path") {
      const sites = [...new Set(resource.pairs.flat())];
      const many = paths.length > 1 ? 0.55 : 0;
      const mean = [0, 1].map((axis) => sites.reduce((sum, site) => sum + places[site][axis], 0) / sites.length);
      const turn = (2 * Math.PI * paths.indexOf(resource)) / paths.length;
      const hub = [0, 1].map((axis) => center[axis] + many * (mean[axis] - center[axis]) + (paths.length > 1 && Math.abs(mean[0] - center[0]) + Math.abs(mean[1] - center[1]) < 20 ? 46 * (axis ? Math.sin(turn) : Math.cos(turn)) : 0));
      if (bases.length) hub[1] += 60;
      hubs.set(resource.name, hub);
      add(sites.map((site) => `M${places[site]} L${hub}`).join(" "), { "stroke-dasharray": "5 4" });
    } else {
      const site = resource.pairs[0][resource.shape === "out" ? 0 : 1], hub = hubs.get(baseName(resource.name));
      const [ax, ay] = places[site], long = Math.hypot(hub[0] - ax, hub[1] - ay) || 1, off = (resource.shape === "out" ? 1 : -1) * Math.min(5, size * 0.3);
      const [ox, oy] = [(-(hub[1] - ay) / long) * off, ((hub[0] - ax) / long) * off];
      add(`M${ax + ox},${ay + oy} L${hub[0] + ox},${hub[1] + oy}`);
    }
  });
  for (const [name, [x, y]] of hubs) {
    const text = shorten(name, 22), half = Math.max(34, 3.9 * text.length + 8);
    picture.append(svg("rect", { x: x - half, y: y - 14, width: 2 * half, height: 28, rx: 8, fill: "var(--card)", stroke: "var(--soft)" }), svg("text", { x, y: y + 4.5, "text-anchor": "middle", "font-size": 11 }, "\u2068" + text + "\u2069"));
  }
  const rings = places.map(([x, y], site) => {
    const around = 2 * Math.PI * (size + 4);
    const ring = svg("circle", { cx: x, cy: y, r: size + 4, fill: "none", stroke: "var(--accent)", "stroke-width": 4, "stroke-dasharray": `0 ${around}`, transform: `rotate(-90 ${x} ${y})` });
    const whole = svg("circle", { cx: x, cy: y, r: size + 4, fill: "var(--card)", stroke: "var(--idle)", "stroke-width": 4 });
    const element = svg("g", {}, whole, ring, svg("circle", { cx: x, cy: y, r: size, fill: siteColour(site) }), size > 8 ? svg("text", { x, y: y + size * 0.28, "text-anchor": "middle", "font-size": size > 9 ? Math.max(9, size * 0.8) : 7.5, "font-weight": 600, style: `fill:${siteInk(site)}` }, String(site)) : "");
    const about = machine.sites[site];
    const peaks = Object.entries(about.flops).map(([name, flops]) => `${Number((flops / 1e12).toPrecision(4))} ${shorten(name, 12)}`).join(", ");
    element.addEventListener("mousemove", (event) => showTip(event, `site ${site}: ${formatBytes(about.memory_bytes)}, ${about.hbm_gbs} GB/s${peaks ? `; TFLOP/s: ${peaks}` : ""}${element.dataset.busy ? `; ${element.dataset.busy}` : ""}`));
    element.addEventListener("mouseleave", hideTip);
    picture.append(element);
    return { ring, around, element };
  });
  for (const { line, resource } of lines) {
    line.addEventListener("mousemove", (event) => showTip(event, `${isolated(machine.resources[resource].name, 60)}: ${machine.resources[resource].gbs} GB/s${line.dataset.use ? `; ${line.dataset.use}` : ""}`));
    line.addEventListener("mouseleave", hideTip);
  }
  replace(byId("machine-picture"), picture);
  return { lines, rings };
};

const colourMachine = ({ lines, rings }, use, busy) => {
  for (const { line, resource, rate } of lines) {
    const share = use[resource];
    line.setAttribute("stroke", share > 0 ? heat(0.22 + 0.78 * share) : "var(--line)");
    line.setAttribute("stroke-width", share > 0 ? 1.5 + 6.5 * Math.min(1, share) : Math.min(2, rate));
    line.dataset.use = `${percent(share)} in use`;
  }
  rings.forEach(({ ring, around, element }, site) => {
    ring.setAttribute("stroke-dasharray", `${around * Math.min(1, busy[site] || 0)} ${around}`);
    element.dataset.busy = `${percent(busy[site] || 0)} busy`;
  });
};

const startMachine = () => {
  const drawing = drawMachine(), panel = byId("machine-detail");
  const facts = html("p", { class: "what" }, named(machine.name, 60), `: ${formatCount(machine.sites.length, "site")}. A transfer waits ${machine.transfer_latency_us} µs, a kernel ${machine.kernel_latency_us} µs.`, machine.cores ? ` All sites share ${machine.cores} cores.` : "", machine.measured ? " Measured: " + shorten(machine.measured, 80) + "." : "");
  if (!plan) return replace(panel, html("h3", {}, "Links"), listKinds(), facts);
  if (!tasks || !plan.time) return replace(panel, html("h3", {}, "Links"), listKinds(), facts);
  const slider = html("input", { type: "range", min: 0, max: 1000, value: 0, "aria-label": "A moment of the plan", id: "moment" });
  const all = button("Whole plan", () => choose("moment", null), { "aria-pressed": "true", id: "whole-plan" });
  const when = html("span", { id: "moment-text" });
  slider.addEventListener("input", () => choose("moment", (slider.value / 1000) * tasks.last));
  const links = html("div", { class: "scroll" }), numbers = new Map(machine.resources.map((one, r) => [one.name, r]));
  const show = () => {
    const moment = chosen.moment, use = moment === null ? new Float64Array(machine.resources.length) : measureUse(moment), busy = new Float64Array(machine.sites.length);
    if (moment === null) {
      for (const link of plan.time.links) use[numbers.get(link.name)] = link.full_ms / (plan.predicted_ms || 1);
      plan.time.site_ms.forEach((ms, site) => (busy[site] = ms / (plan.predicted_ms || 1)));
    } else for (let n = 0; n < tasks.count && tasks.start[n] <= moment; n++) if (tasks.kind[n] !== TRANSFER && tasks.end[n] > moment) busy[tasks.site[n]] = 1;
    colourMachine(drawing, use, busy);
    all.setAttribute("aria-pressed", String(moment === null));
    if (moment !== null) slider.value = Math.round((1000 * moment) / (tasks.last || 1));
    replace(when, document.createTextNode(moment === null ? "over the whole plan" : `at ${formatTime(moment / NS)}`));
    const carried = new Map(plan.time.links.map((link) => [link.name, link]));
    const order = machine.resources.map((one, r) => r).filter((r) => use[r] > 0).sort((a, b) => use[b] - use[a] || a - b).slice(0, 12);
    const rows = order.map((r) => {
      const bar = html("span", { class: "fill" });
      bar.style.cssText = `width:${Math.min(100, 100 * use[r])}%;background:${heat(0.22 + 0.78 * use[r])};opacity:1`;
      const link = carried.get(machine.resources[r].name);
      return html("tr", {}, html("th", { scope: "row" }, named(machine.resources[r].name, 40)), html("td", { class: "bar" }, html("span", { class: "track" }, bar)), html("td", { class: "value" }, percent(use[r])), html("td", { class: "value ratio" }, moment === null && link ? formatBytes(link.bytes) : ""));
    });
    replace(links, rows.length ? html("table", { class: "bars", id: "links" }, rows) : html("p", {}, moment === null ? "Nothing crosses a link in this plan: all that a site reads lies there already." : "Nothing crosses a link at this moment."));
  };
  replace(panel, html("h3", {}, "The busiest links"), html("div", { class: "tools" }, all, slider, when), links,
    html("p", { class: "what" }, "The share of a link's rate that is in use: over the whole plan, its bytes at full rate over the predicted time; at a moment, by the mean rates of the transfers under way."), facts);
  onChange("moment", show);
  show();
};

const listKinds = () => {
  const kinds = new Map();
  for (const resource of machine.resources) {
    const kind = JSON.stringify([baseName(resource.name), resource.shape, resource.gbs, resource.shape === "path" ? resource.pairs.length : 0]);
    kinds.set(kind, (kinds.get(kind) || 0) + 1);
  }
  const says = { link: "from one site to one other", out: "out of one site", in: "into one site", path: "shared by pairs of sites" };
  const rows = [...kinds].slice(0, 40).map(([kind, count]) => {
    const [name, shape, gbs, pairs] = JSON.parse(kind);
    return html("tr", {}, html("th", { scope: "row" }, named(name, 40)), html("td", {}, says[shape] + (pairs ? ` (${pairs})` : "")), html("td", { class: "num" }, `${gbs} GB/s`), html("td", { class: "num" }, `× ${count}`));
  });
  return rows.length ? table([["name"], ["joins"], ["rate", "num"], ["how many", "num"]], rows) : html("p", {}, "There are no links.");
};
