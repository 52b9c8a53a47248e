// Rows of bars on a canvas, of many tasks at once: what shares a pixel is drawn once, so that any number stays fast.
const makeRows = (data, links, isMeasured) => {
  const rows = [], sites = [];
  const busy = new Map();
  for (let n = 0; n < data.count; n++) {
    const site = data.site[n];
    if (data.kind[n] !== TRANSFER) (sites[site] = sites[site] || []).push(n);
    else for (const r of findRoute(site, data.target[n])) busy.has(r) ? busy.get(r).push(n) : busy.set(r, [n]);
  }
  const count = Math.max(sites.length, plan ? plan.devices : 0);
  for (let site = 0; site < count; site++) {
    rows.push({ kind: "site", site, name: `site ${site}`, tasks: Int32Array.from(sites[site] || []), height: isMeasured ? 30 : 22 });
  }
  if (!links) return rows;
  const load = (r) => busy.get(r).reduce((sum, n) => sum + (data.bytes ? data.bytes[n] : 1), 0) / machine.resources[r].gbs;
  const used = [...busy.keys()].map((r) => [load(r), r]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  for (const [, r] of used) rows.push({ kind: "link", resource: r, name: machine.resources[r].name, tasks: Int32Array.from(busy.get(r)), height: 15 });
  return rows;
};

// For each row, its tasks in the order of their starts, and the greatest end of all tasks up to each: what may be seen
// from `first` on begins where that end exceeds it.
const indexRow = (row, start, end) => {
  if (row.reach) return;
  row.reach = new Float64Array(row.tasks.length);
  let most = -Infinity;
  row.tasks.forEach((n, at) => (row.reach[at] = most = Math.max(most, end[n])));
};
const findFirst = (row, first) => {
  let low = 0, high = row.tasks.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (row.reach[mid] > first) high = mid;
    else low = mid + 1;
  }
  return low;
};

const drawRow = (context, data, row, view, top, look) => {
  indexRow(row, data.start, data.end);
  const { left, width, first, last } = view, scale = width / (last - first);
  const height = look.height || row.height - 5;
  // By colour: the pixels that are taken, so that each is filled once.
  const runs = look.colours.map(() => []);
  const edges = [];
  let marked = [];
  for (let at = findFirst(row, first); at < row.tasks.length; at++) {
    const n = row.tasks[at];
    if (data.start[n] >= last) break;
    if (data.end[n] < first) continue;
    const x0 = Math.max(0, (data.start[n] - first) * scale), x1 = Math.min(width, (data.end[n] - first) * scale);
    const kind = look.colour(n);
    if (kind < 0) continue;
    const own = runs[kind], before = own[own.length - 1];
    const wide = Math.max(x1 - x0, 0.7);
    if (before && x0 - before[1] < 0.4 && (wide < 3 || x0 - before[1] < 0)) {
      before[1] = Math.max(before[1], x0 + wide);
    } else own.push([x0, x0 + wide]);
    if (look.critical && data.critical[n]) {
      const edge = edges[edges.length - 1];
      if (edge && x0 - edge[1] < 0.6) edge[1] = Math.max(edge[1], x0 + wide);
      else edges.push([x0, x0 + wide]);
    }
    if (look.marked && look.marked(n)) {
      const last = marked[marked.length - 1];
      if (last && x0 - last[1] < 1.5) last[1] = Math.max(last[1], x0 + wide);
      else marked.push([x0, x0 + wide]);
    }
  }
  runs.forEach((own, kind) => {
    context.fillStyle = look.colours[kind];
    const gap = own.length < width / 6 ? 0.8 : 0;
    for (const [x0, x1] of own) context.fillRect(left + x0, top, Math.max(0.7, x1 - x0 - (x1 - x0 > 3 ? gap : 0)), height);
    if (look.hatched === kind) hatch(context, own, left, top, height);
  });
  context.fillStyle = colour("critical");
  for (const [x0, x1] of edges) {
    context.fillRect(left + x0, top + height - 1, Math.max(0.7, x1 - x0), 3);
    context.fillRect(left + x0, top - 1.5, Math.max(0.7, x1 - x0), 2);
  }
  context.strokeStyle = context.fillStyle = colour("accent");
  for (const [x0, x1] of marked) {
    context.fillRect(left + x0 - 0.5, top - 3, Math.max(2, x1 - x0), 3);
    context.lineWidth = 2;
    context.strokeRect(left + x0, top, Math.max(1, x1 - x0), height);
  }
};

// Combining is striped, so that it is not told by its colour alone.
const hatch = (context, spans, left, top, height) => {
  context.strokeStyle = "rgba(0,0,0,.55)";
  context.lineWidth = 1;
  context.beginPath();
  for (const [x0, x1] of spans) {
    if (x1 - x0 < 4) continue;
    for (let x = x0 + 2; x < x1; x += 4) {
      context.moveTo(left + x, top + height);
      context.lineTo(left + Math.min(x1, x + 3), top);
    }
  }
  context.stroke();
};

const findTaskAt = (data, row, time, slack) => {
  indexRow(row, data.start, data.end);
  let best = -1, near = slack;
  for (let at = findFirst(row, time - slack); at < row.tasks.length; at++) {
    const n = row.tasks[at];
    if (data.start[n] > time + slack) break;
    const apart = time < data.start[n] ? data.start[n] - time : time > data.end[n] ? time - data.end[n] : 0;
    if (apart <= near) {
      near = apart;
      best = n;
      if (!apart) break;
    }
  }
  return best;
};

const drawAxis = (context, view, top, height, most = 9) => {
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.fillStyle = colour("soft");
  context.strokeStyle = colour("faint");
  context.lineWidth = 1;
  const unit = view.last - view.first < 2e3 ? ["ns", 1] : view.last - view.first < 2e6 ? ["µs", 1e3] : view.last - view.first < 4e9 ? ["ms", 1e6] : ["s", 1e9];
  const ticks = findTicks(view.first / unit[1], view.last / unit[1], Math.min(most, view.width / 90));
  const digits = ticks.length > 1 ? Math.max(0, -Math.floor(Math.log10(ticks[1] - ticks[0]) + 1e-9)) : 0;
  for (const tick of ticks) {
    const x = view.left + ((tick * unit[1] - view.first) / (view.last - view.first)) * view.width;
    if (x > view.left + view.width - 26) context.textAlign = "right";
    context.fillText(`${groups(tick.toFixed(digits))} ${unit[0]}`, Math.min(x, view.left + view.width), top - 6);
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, top);
    context.lineTo(Math.round(x) + 0.5, top + height);
    context.stroke();
  }
  context.textAlign = "left";
};
// A name that is too long keeps its end, where the numbers of links stand.
const clipText = (context, text, width) => {
  const shown = shorten(text, 60);
  if (context.measureText(shown).width <= width) return shown;
  const end = shown.slice(-6);
  let low = 0, high = shown.length - 6;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (context.measureText(shown.slice(0, mid) + "…" + end).width <= width) low = mid;
    else high = mid - 1;
  }
  return shown.slice(0, low) + "…" + end;
};
