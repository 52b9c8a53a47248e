// The exchange programs: a list with times and bounds, and of one program who sends which piece when.
const AUTHORS = { compiler: "einc", proposer: "a proposer", user: "you" };

const startExchanges = () => {
  if (!programs.length) {
    replace(byId("exchange-list"), html("p", {}, "This plan moves nothing between sites: every operator finds what it reads where it runs."));
    return;
  }
  if (raw.kind === "plan") listPrograms();
  else byId("exchange-list").hidden = true;
  onChange("program", showProgram);
  choose("program", 0);
};

const listPrograms = () => {
  const most = Math.max(...programs.map((row) => Math.max(row.exchange.naive_ms || 0, row.exchange.completion_ms || 0))) || 1;
  const rows = programs.map((row, at) => {
    const { completion_ms: taken, naive_ms: naive, bound_ms: bound } = row.exchange;
    const track = html("span", { class: "track" });
    const part = (ms, css) => {
      const span = html("span");
      span.style.cssText = `position:absolute;top:0;bottom:0;${css(`${(100 * (ms || 0)) / most}%`)}`;
      track.append(span);
    };
    part(naive, (wide) => `left:0;width:${wide};background:var(--line)`);
    part(taken, (wide) => `left:0;width:${wide};background:var(--transfer)`);
    if (bound !== null) part(bound, (wide) => `left:calc(${wide} - 2px);width:3px;background:var(--critical);outline:1px solid var(--card)`);
    const names = row.names.slice(0, 3).map((name, n) => [n ? ", " : "", named(name, 40)]);
    return pressable(
      html("tr", { "data-program": at }, html("th", { scope: "row", class: "name" }, names, row.names.length > 3 ? ` and ${row.names.length - 3} more` : ""), html("td", {}, track), html("td", { class: "num" }, formatMs(taken)), html("td", { class: "num" }, formatMs(naive)), html("td", { class: "num" }, formatMs(bound)),
        html("td", { class: "num" }, bound ? `${(taken / bound).toFixed(2)}×` : "–"), html("td", {}, AUTHORS[row.exchange.author] || "")),
      () => choose("program", at),
    );
  });
  const grid = table([["for"], ["time, and naive"], ["time", "num"], ["naive", "num"], ["bound", "num"], ["time / bound", "num"], ["written by"]], rows);
  for (const row of grid.rows) row.cells[1].style.width = "22%";
  onChange("program", (at) => rows.forEach((row, n) => row.classList.toggle("chosen", n === at)));
  replace(byId("exchange-list"), grid);
};

const showProgram = (at) => {
  const row = programs[at], { exchange, drawn } = row, panel = byId("exchange");
  const proof = exchange.bound_ms === null || exchange.bound_ms === undefined ? "No bound is known." : `No program takes less than ${formatMs(exchange.bound_ms)} between these sites: `;
  const free = exchange.bound_free_ms === null || exchange.bound_free_ms === undefined ? "" : ` On any sites, none takes less than ${formatMs(exchange.bound_free_ms)}.`;
  const text = html("details", { class: "more" }, html("summary", {}, "The program"), html("pre", {}, exchange.program));
  const head = html("h3", {}, raw.kind === "plan" ? "Exchange for " : "", row.names.slice(0, 4).map((name, n) => [n ? ", " : "", named(name, 60)]), row.names.length > 4 ? ` and ${row.names.length - 4} more` : "");
  const bound = html("p", { id: "bound" }, proof, exchange.bound_ms !== null && exchange.bound_ms !== undefined ? named(exchange.bound_by || "the plan does not say why", 400) : "", exchange.bound_ms ? "." : "", free);
  const content = html("div", { class: "panel" }, head, bound);
  replace(panel, content);
  if (drawn) drawProgram(content, drawn);
  else content.append(html("p", {}, "This program is too long to be drawn here."));
  content.append(text);
};

// Transfers that share a link stand below each other.
const layRow = (r, list, data) => {
  const lanes = [], labels = [], ends = [];
  for (const n of list) {
    let at = ends.findIndex((end) => end <= data.start[n] + 1e-6);
    if (at < 0) {
      at = Math.min(ends.length, 15);
      lanes[at] = lanes[at] || { tasks: [] };
    }
    ends[at] = Math.max(ends[at] || 0, data.end[n]);
    lanes[at].tasks.push(n);
    labels.push([n, at]);
  }
  const lane = lanes.length === 1 ? 17 : lanes.length <= 4 ? 13 : lanes.length <= 8 ? 5 : 4;
  return { resource: r, name: machine.resources[r].name, lanes, labels, lane, height: lane * lanes.length + 4 };
};

const drawProgram = (content, drawn) => {
  const count = drawn.flows.length, whole = Math.max(drawn.completion_ms * NS, 1);
  const data = { count, start: Float64Array.from(drawn.flows, (flow) => flow[3] * NS), end: Float64Array.from(drawn.flows, (flow) => flow[4] * NS) };
  const lanes = new Map();
  const order = drawn.flows.map((_, n) => n).sort((a, b) => data.start[a] - data.start[b] || a - b);
  for (const n of order) for (const r of findRoute(drawn.flows[n][1], drawn.flows[n][2])) lanes.has(r) ? lanes.get(r).push(n) : lanes.set(r, [n]);
  const rows = [...lanes].sort((a, b) => a[0] - b[0]).map(([r, list]) => layRow(r, list, data));
  const shown = rows.slice(0, 48), top = 24, tall = shown.reduce((sum, row) => sum + row.height, 0), view = { first: 0, last: whole, left: 104, width: 100 };
  let moment = whole;
  const draw = (context, width) => {
    view.left = width < 500 ? 70 : 104;
    view.width = width - view.left - 2;
    drawAxis(context, view, top, tall + 4);
    const colours = machine.sites.map((_, site) => siteColour(site));
    let y = top + 2;
    shown.forEach((row) => {
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.fillStyle = colour("soft");
      context.fillText(clipText(context, row.name, view.left - 8), 0, y + row.height / 2 - 2);
      context.fillStyle = colour("idle");
      context.fillRect(view.left, y, view.width, row.height - 4);
      row.lanes.forEach((lane, at) => drawRow(context, data, lane, view, y + at * row.lane, { height: row.lane - 1, colours, colour: (n) => drawn.flows[n][1], hatched: -1 }));
      context.font = "11px system-ui, sans-serif";
      if (row.lane >= 11) for (const [n, at] of row.labels) {
        const x0 = view.left + (data.start[n] / whole) * view.width, x1 = view.left + (data.end[n] / whole) * view.width;
        const [piece, source, target] = drawn.flows[n];
        const label = `${source}→${target} ${shorten(drawn.aggregates[piece].name, 24)}`;
        if (x1 - x0 < context.measureText(label).width + 8) continue;
        context.fillStyle = siteInk(source);
        context.fillText(label, x0 + 4, y + at * row.lane + row.lane / 2);
      }
      y += row.height;
      context.textBaseline = "alphabetic";
    });
    const x = view.left + (moment / whole) * view.width;
    context.fillStyle = colour("warn");
    context.fillRect(x - 0.75, top - 4, 1.5, tall + 10);
  };
  const holder = html("div", { id: "exchange-picture" });
  content.append(holder);
  const { canvas, repaint } = makeCanvas(holder, () => top + tall + 8, `Which piece crosses which of ${formatCount(rows.length, "link")} when, in ${formatCount(count, "transfer")}`, draw);
  const senders = [...new Set(drawn.flows.map((flow) => flow[1]))].sort((a, b) => a - b);
  content.append(html("div", { class: "tools" }, "sent by site", senders.slice(0, 24).map((site) => key(String(site), siteColour(site))), html("span", { class: "what" }, "Transfers that share a link stand below each other. Choose a moment to see who has what.")));
  if (rows.length > shown.length) content.append(html("p", { class: "what" }, `The first ${shown.length} of ${rows.length} links are shown.`));
  const slider = html("input", { type: "range", min: 0, max: 1000, value: 1000, id: "exchange-moment", "aria-label": "A moment of the exchange" });
  const when = html("span", {}), state = html("div", { class: "state", id: "copies" });
  const show = () => {
    replace(when, document.createTextNode(`at ${formatTime(moment / NS)}`));
    replace(state, ...listCopies(drawn, moment));
    repaint();
  };
  slider.addEventListener("input", () => {
    moment = (slider.value / 1000) * whole;
    show();
  });
  const locate = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let at = top + 2, lane = null;
    for (const row of shown) {
      if (y >= at && y < at + row.height) lane = row.lanes[Math.min(row.lanes.length - 1, Math.floor((y - at) / row.lane))];
      at += row.height;
    }
    return { time: ((x - view.left) / view.width) * whole, row: lane, inside: x >= view.left };
  };
  canvas.addEventListener("mousemove", (event) => {
    const place = locate(event), n = place.inside && place.row ? findTaskAt(data, place.row, place.time, whole / view.width) : -1;
    if (n < 0) return hideTip();
    const [piece, source, target, start, end] = drawn.flows[n], one = drawn.aggregates[piece];
    showTip(event, `${isolated(one.name, 80)} (${formatBytes(one.bytes)}) from site ${source} to site ${target}, ${formatTime(end - start)} from ${formatTime(start)}`);
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const place = locate(event);
    if (!place.inside) return;
    moment = Math.min(whole, Math.max(0, place.time));
    slider.value = Math.round((1000 * moment) / whole);
    show();
  });
  content.append(html("h3", {}, "Who has what"), html("div", { class: "tools" }, slider, when, html("span", { class: "key" }, html("span", { class: "chip" }, "held before"), html("span", { class: "chip new" }, "arrived"), html("span", { class: "chip formed" }, "formed of others"))), state);
  show();
};

const MAX_CHIPS = 24;
const listCopies = (drawn, moment) => {
  const held = new Map(machine.sites.map((_, site) => [site, []]));
  const all = [...drawn.copies, ...drawn.flows.map(([piece, , target, , end]) => [piece, target, end, "arrived"])].sort((a, b) => a[2] - b[2]);
  for (const [piece, site, ms, how] of all) if (ms * NS <= moment + 1) held.get(site).push([piece, how]);
  const used = [...held].filter(([site]) => all.some((copy) => copy[1] === site));
  return used.slice(0, 72).map(([site, copies]) => {
    const mark = html("span", { class: "key" }, html("i"));
    mark.firstChild.style.background = siteColour(site);
    const chips = copies.slice(0, MAX_CHIPS).map(([piece, how]) => html("span", { class: `chip ${how === "arrived" ? "new" : how === "formed" ? "formed" : ""}`, title: how }, named(drawn.aggregates[piece].name, 24)));
    return html("div", { "data-site": site }, html("b", {}, mark, ` site ${site}`), chips, copies.length > MAX_CHIPS ? ` and ${copies.length - MAX_CHIPS} more` : copies.length ? "" : "nothing");
  });
};
