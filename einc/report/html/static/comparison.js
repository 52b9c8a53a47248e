// Two plans side by side: figures, operators that differ, memory, and both timelines on one scale.
const startComparison = () => {
  const { differences, tasks: written, memory_bytes: otherMemory } = raw.comparison, columns = readColumns(written), holder = byId("comparison-content");
  const unit = { ms: formatMs, B: (bytes) => formatBytes(bytes) };
  const format = (row, value) => (value === null ? "–" : (unit[row.unit] || ((number) => groups(Number.isInteger(number) ? String(number) : number.toPrecision(4))))(value));
  const compare = (row) => {
    if (row.a === row.b) return "the same";
    if (!row.a || row.b === null) return "";
    const change = (100 * (row.b - row.a)) / row.a;
    return Math.abs(change) < 0.05 ? "about the same" : `${change > 0 ? "+" : "−"}${Math.abs(change).toFixed(1)}%`;
  };
  const say = (value, name) => (value === null ? "none" : name === "memory_limit" ? formatBytes(value) : typeof value === "boolean" ? (value ? "yes" : "no") : typeof value === "object" ? JSON.stringify(value) : String(value));
  const pair = (a, b, most) =>
    html("span", {}, [["A", a, "accent"], ["B", b, "combine"]].map(([name, value, paint]) => {
      const bar = html("span", { class: "fill" });
      bar.style.cssText = `width:${(100 * (value || 0)) / (most || 1)}%;background:${name === "A" ? `var(--${paint})` : `repeating-linear-gradient(45deg, var(--${paint}) 0 4px, transparent 4px 6px)`};opacity:1`;
      const track = html("span", { class: "track", title: name }, bar);
      track.style.height = "9px";
      track.style.marginBottom = "2px";
      return track;
    }));
  // How far the predicted time of a side can be believed stands below it.
  const note = (row, side) => (row.quantity === "predicted_ms" && raw.comparison.trust[side] ? html("div", { class: "remark" }, raw.comparison.trust[side]) : "");
  const always = ["predicted_ms", "comm_bytes", "memory"];
  const quantities = differences.quantities.filter((row) => row.a !== row.b || always.includes(row.quantity));
  const rows = quantities.map((row) => {
    return html("tr", { "data-quantity": row.quantity }, html("th", { scope: "row", class: "name" }, row.quantity.replace(/_/g, " ")), html("td", {}, pair(row.a, row.b, Math.max(row.a || 0, row.b || 0))), html("td", { class: "num" }, format(row, row.a), note(row, "a")), html("td", { class: "num" }, format(row, row.b), note(row, "b")), html("td", { class: "num" }, compare(row)));
  });
  const figures = table([["figure"], ["A above B"], ["A", "num"], ["B", "num"], ["B to A", "num"]], rows);
  for (const row of figures.rows) row.cells[1].style.width = "28%";
  const header = differences.header.length ? html("p", {}, differences.header.map((row, at) => [at ? "; " : "", row.name.replace(/_/g, " "), row.name === "machine_file" ? " differs" : [": ", named(say(row.a, row.name), 60), " → ", named(say(row.b, row.name), 60)]])) : "";
  const panel = html("div", { class: "panel" }, html("h3", {}, differences.equal ? "Both plans are the same" : differences.tasks_alone ? "Only tasks or buffers differ" : "Figures that differ"), header, html("div", { class: "scroll" }, figures));
  replace(holder, panel, compareMemory(otherMemory, pair), compareOperators(differences.operators));
  if (tasks && columns) compareTimelines(holder, readTasks(columns));
};

const compareMemory = (other, pair) => {
  const count = Math.max(plan.memory_bytes.length, other.length), most = Math.max(...plan.memory_bytes, ...other);
  const rows = Array.from({ length: Math.min(count, 64) }, (_, site) =>
    html("tr", {}, html("th", { scope: "row" }, `site ${site}`), html("td", {}, pair(plan.memory_bytes[site], other[site], most)), html("td", { class: "num" }, plan.memory_bytes[site] === undefined ? "–" : formatBytes(plan.memory_bytes[site])), html("td", { class: "num" }, other[site] === undefined ? "–" : formatBytes(other[site]))),
  );
  return html("details", { class: "panel" }, html("summary", {}, "Memory of each site"), table([["site"], ["A above B"], ["A", "num"], ["B", "num"]], rows));
};

// The cut of an operator in one of two plans, with what its differences say of it.
const drawSide = (entry, side) => {
  const one = entry[side], head = html("h3", {}, `In ${side.toUpperCase()}: `, named(entry.names[0], 40), one ? `, ${shorten(one.cut, 60)}` : " is not there");
  if (!one || !one.blocks) return html("div", {}, head, one ? html("p", { class: "what" }, "Too many operators differ for this cut to be drawn.") : "");
  const specs = one.blocks.map(([inputs, outputs], at) => ({ site: one.sites[at], inputs, outputs }));
  const positions = Object.values(one.intervals).reduce((product, parts) => product * parts.length, 1);
  return html("div", {}, head, drawCut({ name: entry.names[0], intervals: one.intervals, specs, replicas: Math.max(1, Math.round(specs.length / positions)), idle_sites: []}, Math.min(420, innerWidth < 900 ? innerWidth - 60 : 420)));
};

const MAX_CHANGES = 60;
const compareOperators = (entries) => {
  const time = (side) => (side && side.time ? side.time.critical_ms : 0);
  const sorted = [...entries].sort((a, b) => Math.max(time(b.a), time(b.b)) * b.names.length - Math.max(time(a.a), time(a.b)) * a.names.length);
  const cell = (text) => html("td", { class: "num" }, text);
  const rows = sorted.slice(0, MAX_CHANGES).map((entry) => {
    const sides = [entry.a, entry.b];
    return pressable(html("tr", {}, html("th", { scope: "row", class: "name" }, { added: "+ ", removed: "− ", changed: "" }[entry.change], named(entry.names[0], 40), entry.names.length > 1 ? ` × ${entry.names.length}` : ""),
      sides.map((side, at) => html("td", {}, side ? (at && entry.a && entry.a.cut !== side.cut ? html("b", {}, shorten(side.cut, 60)) : shorten(side.cut, 60)) : "–")),
      sides.map((side) => cell(side ? formatBytes(side.moves.bytes) : "–")), sides.map((side) => cell(side && side.time ? formatMs(side.time.critical_ms) : "–")), html("td", {}, entry.fields.join(", "))), () => showBoth(entry));
  });
  const both = html("div", { class: "split even", id: "both-cuts" });
  const showBoth = (entry) => {
    rows.forEach((row, at) => row.classList.toggle("chosen", sorted[at] === entry));
    replace(both, ["a", "b"].map((side) => drawSide(entry, side)));
  };
  if (rows.length) showBoth(sorted[0]);
  else return html("div", { class: "panel" }, html("h3", {}, "Operators"), html("p", {}, "All operators are cut alike, and take as long."));
  return html("div", { class: "panel" }, html("h3", {}, "Operators that differ"), html("div", { class: "scroll" }, table([["operator"], ["cut in A"], ["cut in B"], ["moved A", "num"], ["moved B", "num"], ["critical A", "num"], ["critical B", "num"], ["what differs"]], rows)),
    entries.length > MAX_CHANGES ? html("p", { class: "what" }, `and ${entries.length - MAX_CHANGES} more.`) : "", html("p", { class: "what" }, "Choose a row to see where each part of the operator runs in both plans."), both);
};

const compareTimelines = (holder, other) => {
  const panel = html("div", { class: "panel" }, html("h3", {}, "Both timelines")), last = Math.max(tasks.last, other.last);
  const view = { first: 0, last, left: 70, width: 100 };
  const zoom = button("Zoom in", () => set(view.first, view.first + (view.last - view.first) / 2)), all = button("All", () => set(0, last));
  panel.append(html("div", { class: "tools" }, zoom, all));
  holder.append(panel);
  const canvases = [[tasks, "A", plan.devices], [other, "B", 1 + other.site.reduce((most, site) => Math.max(most, site), 0)]].map(([data, name, count]) => {
    const rows = makeRows(data, false, false).filter((row) => row.site < count), height = 24 + rows.length * 14 + 8;
    panel.append(html("p", { class: "what" }, `${name}: ${formatTime(data.last / NS)}`));
    return makeCanvas(panel, height, `Timeline of plan ${name}`, (context, width) => {
      view.width = width - view.left - 2;
      drawAxis(context, view, 22, rows.length * 14 + 2);
      rows.forEach((row, at) => {
        const y = 24 + at * 14;
        context.fillStyle = colour("soft");
        context.fillText(row.name, 0, y + 9);
        context.fillStyle = colour("idle");
        context.fillRect(view.left, y, view.width, 11);
        context.save();
        context.beginPath();
        context.rect(view.left, 0, view.width, 1e6);
        context.clip();
        drawRow(context, data, row, view, y, { height: 11, colours: [colour("kernel"), colour("combine"), colour("transfer")], colour: (n) => data.kind[n], hatched: COMBINE });
        context.restore();
      });
    });
  });
  const set = (first, end) => {
    view.first = first;
    view.last = Math.max(first + 20, end);
    canvases.forEach((one) => one.repaint());
  };
};
