// One operator: its cut drawn on its iteration space, its costs and times, and the next best cuts.
const sumCost = (operation) => operation.cost.repartition + operation.cost.join + operation.cost.aggregation;

// Along an aggregated index the outputs do not change, so that partial results are combined.
const findAggregated = (names, counts, specs) =>
  names.filter((name, at) => {
    const stride = counts.slice(at + 1).reduce((product, count) => product * count, 1);
    return counts[at] > 1 && specs[stride] && JSON.stringify(specs[0].outputs) === JSON.stringify(specs[stride].outputs);
  });

// The sites that compute each position of the iteration space: specs stand in lexicographic order, replica by replica.
const readSpace = (operation) => {
  const names = Object.keys(operation.intervals), counts = names.map((name) => operation.intervals[name].length);
  const total = counts.reduce((product, count) => product * count, 1);
  const cut = names.filter((name, at) => counts[at] > 1);
  const aggregated = findAggregated(names, counts, operation.specs);
  const spanning = [...cut.filter((name) => !aggregated.includes(name)), ...cut.filter((name) => aggregated.includes(name))];
  const extent = (name) => operation.intervals[name][operation.intervals[name].length - 1][1];
  const whole = names.filter((name) => !cut.includes(name)).sort((a, b) => extent(b) - extent(a));
  const rows = spanning[0] || whole[0] || null, columns = spanning[1] || whole.find((name) => name !== rows) || null;
  const panels = spanning.slice(2);
  const sitesAt = (chosenParts) => {
    const position = names.reduce((sum, name, at) => sum * counts[at] + (chosenParts[name] || 0), 0);
    const sites = [];
    for (let n = position; n < operation.specs.length; n += total) sites.push(operation.specs[n].site);
    return sites;
  };
  return { names, cut, aggregated, rows, columns, panels, whole: whole.filter((name) => name !== rows && name !== columns), sitesAt, extent };
};

const drawCut = (operation, wide = 330) => {
  const space = readSpace(operation);
  const parts = (name) => (name === null ? [[0, 1]] : operation.intervals[name]);
  const panelParts = space.panels.reduce((lists, name) => lists.flatMap((list) => parts(name).map((_, at) => ({ ...list, [name]: at }))), [{}]);
  const shown = panelParts.slice(0, 16);
  const room = shown.length > 1 ? Math.max(120, wide / Math.min(3, shown.length) - 12) : wide;
  const pictures = shown.map((panel) => drawPanel(operation, space, panel, room, parts));
  const notes = [];
  if (space.aggregated.length) notes.push(`Parts along ${space.aggregated.map((name) => shorten(name, 30)).join(", ")} give partial results, which are combined${operation.aggregate ? ` by ${operation.aggregate}` : ""}.`);
  if (operation.replicas > 1) notes.push(`Each part is computed on ${operation.replicas} sites, which then need not exchange it.`);
  if (space.whole.length) notes.push(`Not cut: ${space.whole.slice(0, 5).map((name) => `${shorten(name, 30)} (${groups(String(space.extent(name)))})`).join(", ")}${space.whole.length > 5 ? " …" : ""}.`);
  if (operation.idle_sites.length) notes.push(`${formatCount(operation.idle_sites.length, "site")} of ${plan.devices} take no part.`);
  if (panelParts.length > shown.length) notes.push(`The first ${shown.length} of ${panelParts.length} pictures are shown.`);
  return [html("div", { class: "cuts" }, pictures), notes.length ? html("p", { class: "what" }, notes.join(" ")) : ""];
};

const drawPanel = (operation, space, panel, width, parts) => {
  const rows = parts(space.rows), columns = parts(space.columns);
  const left = 62, top = 32, tall = Math.max(96, Math.min(260, rows.length * 22));
  const rowSize = rows[rows.length - 1][1] || 1, columnSize = columns[columns.length - 1][1] || 1;
  const x = (value) => left + (value / columnSize) * (width - left - 4), y = (value) => top + (value / rowSize) * tall;
  const title = Object.entries(panel).map(([name, at]) => `${shorten(name, 16)} ${parts(name)[at].join(":")}`).join(", ");
  const picture = svg("svg", { width, height: top + tall + (title ? 20 : 6), role: "img", viewBox: `0 0 ${width} ${top + tall + (title ? 20 : 6)}` });
  const described = [];
  rows.forEach(([low, high], r) =>
    columns.forEach(([first, last], c) => {
      const sites = space.sitesAt({ ...panel, [space.rows]: r, [space.columns]: c });
      const [x0, x1, y0, y1] = [x(first), x(last), y(low), y(high)];
      const label = sites.length > 4 ? `${sites.slice(0, 3).join("=")}=…` : sites.join("=");
      const cell = svg("g", {});
      sites.slice(0, 4).forEach((site, at, some) => {
        const step = (x1 - x0) / some.length;
        cell.append(svg("rect", { x: x0 + at * step, y: y0, width: Math.max(0.5, step - (at + 1 === some.length ? 1.5 : 0)), height: Math.max(0.5, y1 - y0 - 1.5), rx: 2, fill: siteColour(site) }));
      });
      if (x1 - x0 > 8 * label.length + 4 && y1 - y0 > 12) {
        const mid = sites.length === 1 ? siteInk(sites[0]) : "#111";
        const size = Math.min(13, y1 - y0);
        if (sites.length > 1) cell.append(svg("rect", { x: (x0 + x1) / 2 - 4 * label.length - 4, y: (y0 + y1) / 2 - 8, width: 8 * label.length + 8, height: 16, rx: 3, fill: "rgba(255,255,255,.86)" }));
        cell.append(svg("text", { x: (x0 + x1) / 2, y: (y0 + y1) / 2 + size * 0.35, "text-anchor": "middle", "font-size": size, style: `fill:${mid}` }, label));
      }
      const text = `site ${sites.join(" = ")}: ${space.rows === null ? "" : `${shorten(space.rows, 30)} ${low}:${high}`}${space.columns === null ? "" : `, ${shorten(space.columns, 30)} ${first}:${last}`}`;
      cell.addEventListener("mousemove", (event) => showTip(event, text));
      cell.addEventListener("mouseleave", hideTip);
      if (described.length < 24) described.push(text);
      picture.append(cell);
    }),
  );
  const every = Math.ceil(rows.length / (tall / 14));
  rows.forEach(([low], r) => {
    if (r % every === 0) picture.append(svg("text", { x: left - 6, y: y(low) + 10, "text-anchor": "end", "font-size": 11 }, String(low)));
  });
  if (space.rows !== null) picture.append(svg("text", { x: 0, y: 12, "font-size": 11.5, "font-weight": 600 }, `${shorten(space.rows, 18)} ↓${rows.length > 1 ? ` /${rows.length}` : ""}`));
  if (space.columns !== null) {
    picture.append(svg("text", { x: width - 4, y: 12, "text-anchor": "end", "font-size": 11.5, "font-weight": 600 }, `${shorten(space.columns, 18)} →${columns.length > 1 ? ` /${columns.length}` : " whole"}`));
    const skip = Math.ceil(columns.length / ((width - left) / 46));
    columns.forEach(([first], c) => {
      if (c % skip === 0) picture.append(svg("text", { x: x(first), y: top - 5, "font-size": 11 }, String(first)));
    });
  }
  if (title) picture.append(svg("text", { x: left, y: top + tall + 14, "font-size": 11.5 }, title));
  picture.setAttribute("aria-label", `The cut of ${shorten(operation.name, 60)}: ${described.join("; ")}`);
  return picture;
};

const figure = (value, label) => html("div", {}, html("b", {}, value), html("span", {}, label));

const drawOtherCuts = (operation) => {
  const timed = operation.next_fastest !== null, others = operation.other_cuts || [];
  if (!others.length) return html("p", { class: "what" }, "This operator has no other cut that is known.");
  const more = (other) => (timed ? other.more_ms : other.more);
  const most = Math.max(...others.map((other) => Math.abs(more(other)))) || 1;
  const say = (value) => {
    if (timed) return Math.abs(value) < 0.0000005 ? "as fast" : `${value > 0 ? "+" : "−"}${formatTime(Math.abs(value))}`;
    return value === 0 ? "as much" : `${value > 0 ? "+" : "−"}${groups(String(Math.abs(value)))}`;
  };
  const rows = others.map((other) => {
    const bar = html("span", { class: "fill" });
    bar.style.width = `${Math.max(0.8, (100 * Math.abs(more(other))) / most)}%`;
    if (more(other) < 0) bar.style.background = "var(--transfer)";
    const near = timed && other.error_ms !== null && Math.abs(other.more_ms) <= other.error_ms;
    return html("tr", {}, html("th", { scope: "row" }, formatCut(other), near ? html("span", { class: "remark" }, " within the error") : ""), html("td", { class: "bar" }, html("span", { class: "track" }, bar)), html("td", { class: "value" }, say(more(other))));
  });
  return [
    html("table", { class: "bars", id: "other-cuts" }, rows),
    html("p", { class: "what" }, timed ? "About how much longer the plan would take with another cut of this operator, by the time tables, which do not see what overlaps." : "Elements of the paper's cost that another cut of this operator would add."),
  ];
};

const showOperator = (index) => {
  const panel = byId("operator"), operation = plan.ops[index], time = operation.time, timed = plan.selector === "fastest";
  const node = raw.model.nodes.find((one) => one.operation === index || (one.run !== null && (index - one.operation) % one.step === 0 && index >= one.operation && index < one.operation + one.step * one.count));
  const list = (names) => names.map((name, at) => [at ? ", " : "", named(name, 60)]);
  const layers = node && node.count > 1 ? html("p", { class: "what" }, `One of ${node.count} in equal layers: `, layerPicker(node, index)) : "";
  const program = operation.exchange ? programs.findIndex((one) => one.names.includes(operation.name)) : -1;
  const moved = operation.moves.transfers ? `${formatBytes(operation.moves.bytes)} in ${formatCount(operation.moves.transfers, "transfer")}` : "nothing";
  replace(
    panel,
    html("h3", {}, list(operation.outputs), " = ", named(operation.op, 60), "(", list(operation.inputs), ")"),
    operation.source ? html("p", { class: "what" }, named(operation.source, 100)) : "",
    layers,
    html("p", {}, "Cut ", html("b", { id: "operator-cut" }, formatCut(operation)), operation.pin ? [", pinned to ", named(operation.pin, 60)] : "", "."),
    ...drawCut(operation, Math.min(430, Math.max(260, panel.clientWidth - 40))),
    html(
      "div",
      { class: "figures" },
      time ? [figure(formatTime(time.critical_ms), "on the critical path"), figure(formatTime(time.compute_ms), "kernels, mean of sites"), figure(formatTime(time.combine_ms), "combining"), figure(formatTime(time.waiting_ms), "idle before it"), figure(formatTime(time.exchange_ms), "transfers under way")] : "",
      figure(moved, "moved for it"),
    ),
    html("details", { open: !timed }, html("summary", {}, "The paper's cost"), html(
      "div",
      { class: "figures" },
      figure(groups(String(operation.cost.repartition)), "repartition, elements"),
      figure(groups(String(operation.cost.join)), "join, elements"),
      figure(groups(String(operation.cost.aggregation)), "aggregation, elements"),
    )),
    html("h3", {}, "Next best cuts"),
    ...[drawOtherCuts(operation)].flat(),
    program >= 0 ? button("Show its exchange program", () => (choose("program", program), byId("exchanges").scrollIntoView())) : "",
  );
};

const layerPicker = (node, index) => {
  const picker = html("select", { "aria-label": "Layer", onchange: () => choose("operation", Number(picker.value)) });
  for (let layer = 0; layer < node.count; layer++) {
    const at = node.operation + layer * node.step;
    picker.append(html("option", { value: at, selected: at === index }, shorten(plan.ops[at].name, 40)));
  }
  return picker;
};
