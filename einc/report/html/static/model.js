// The model as a graph. Places come with the data; here they become boxes and lines.
const BOX = { width: 184, height: 46, stepX: 204, stepY: 94, margin: 26 };

const drawModel = () => {
  const model = raw.model, count = model.nodes.length;
  const width = Math.max(1, model.columns) * BOX.stepX + 2 * BOX.margin, height = (model.rows - 1) * BOX.stepY + BOX.height + 2 * BOX.margin;
  const x = (column) => BOX.margin + column * BOX.stepX, y = (row) => BOX.margin + row * BOX.stepY + BOX.height / 2;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `The model as a graph of ${count} operators` });
  const most = Math.max(1, ...model.edges.map((edge) => edge.bytes));
  const groupsOf = model.runs.map((run, r) => model.nodes.filter((node) => node.run === r));
  groupsOf.forEach((nodes, r) => {
    if (!nodes.length) return;
    const xs = nodes.map((node) => x(node.x)), ys = nodes.map((node) => y(node.y));
    const [left, top] = [Math.min(...xs) - BOX.width / 2 - 14, Math.min(...ys) - BOX.height / 2 - 22];
    picture.append(
      svg("rect", { class: "runbox", x: left, y: top, width: Math.max(...xs) + BOX.width / 2 + 14 - left, height: Math.max(...ys) + BOX.height / 2 + 12 - top, rx: 12 }),
      svg("text", { class: "runlabel", x: left + 8, y: top + 15 }, `${model.runs[r].count} equal layers`),
    );
  });
  const edges = model.edges.map((edge) => drawEdge(edge, most, x, y));
  picture.append(...edges.map(([line]) => line), ...edges.flatMap(([, label]) => label || []));
  model.nodes.forEach((node) => picture.append(drawNode(node, x(node.x), y(node.y))));
  const drawn = Object.fromEntries([...picture.querySelectorAll(".node")].map((element) => [element.dataset.operation, element]));
  onChange("operation", (index) => {
    const node = model.nodes.find((one) => one.operation === index || (one.run !== null && index >= one.operation && index < one.operation + one.step * one.count && (index - one.operation) % one.step === 0));
    for (const element of Object.values(drawn)) {
      const own = node && element.dataset.operation === String(node.operation);
      element.classList.toggle("chosen", Boolean(own));
      element.setAttribute("aria-pressed", String(Boolean(own)));
    }
    showOperator(index);
  });
  replace(byId("model-picture"), picture);
};

const drawEdge = (edge, most, x, y) => {
  const points = edge.points.map(([column, row]) => [x(column), y(row)]);
  const [first, last] = [points[0], points[points.length - 1]];
  if (edge.back) {
    const out = first[0] + BOX.width / 2 + 8;
    const way = `M${first[0]},${first[1] + BOX.height / 2} c0,18 ${BOX.width / 2 + 8},18 ${BOX.width / 2 + 8},0 L${out},${last[1] - BOX.height / 2 - 2} `;
    const end = `Q${out},${last[1] - BOX.height / 2 - 14} ${last[0]},${last[1] - BOX.height / 2}`;
    return [svg("path", { class: "edge still back", d: way + end, "stroke-width": 1.5 })];
  }
  first[1] += BOX.height / 2;
  last[1] -= BOX.height / 2;
  let way = `M${first[0]},${first[1]}`;
  for (let n = 1; n < points.length; n++) {
    const [[ax, ay], [bx, by]] = [points[n - 1], points[n]], mid = (ay + by) / 2;
    way += ` C${ax},${mid} ${bx},${mid} ${bx},${by}`;
  }
  const moves = edge.bytes > 0, wide = moves ? 2 + (8 * edge.bytes) / most : 1.5;
  const line = svg("path", { class: moves ? "edge" : "edge still", d: way, "stroke-width": wide });
  const text = `${isolated(edge.tensor, 60)}: ${moves ? `${formatBytes(edge.bytes)} between sites` : "nothing moves between sites"}`;
  line.addEventListener("mousemove", (event) => showTip(event, text));
  line.addEventListener("mouseleave", hideTip);
  if (!moves) return [line];
  const at = points[Math.floor((points.length - 1) / 2)], to = points[Math.floor((points.length - 1) / 2) + 1];
  const label = formatBytes(edge.bytes), x0 = (at[0] + to[0]) / 2 + wide / 2 + 3, y0 = (at[1] + to[1]) / 2;
  return [line, svg("g", { class: "edgelabel" }, svg("rect", { x: x0 - 3, y: y0 - 8, width: 6.4 * label.length + 6, height: 16, rx: 4 }), svg("text", { x: x0, y: y0 + 4 }, label))];
};

const drawNode = (node, x, y) => {
  const operation = plan.ops[node.operation], half = [BOX.width / 2, BOX.height / 2];
  const share = operation.time && plan.predicted_ms ? (operation.time.critical_ms * node.count) / plan.predicted_ms : 0;
  const part = share > 0.0005 ? percent(share) : "";
  const name = shorten(operation.name, 15), cut = shorten(formatCut(operation), part ? 21 : 29);
  const label = `${shorten(operation.name, 60)}, ${shorten(operation.op, 40)}, cut ${formatCut(operation)}, ${percent(share)} of the critical path${node.count > 1 ? `, in ${node.count} layers` : ""}`;
  const element = svg(
    "g",
    { class: "node", role: "button", "aria-label": label, "aria-pressed": "false", "data-operation": node.operation, transform: `translate(${x - half[0]},${y - half[1]})` },
    svg("rect", { class: "box", width: BOX.width, height: BOX.height, rx: 8 }),
    share > 0.004 ? svg("rect", { class: "share", x: 5, y: BOX.height - 7, width: Math.max(2, (BOX.width - 10) * Math.min(1, share)), height: 4, rx: 2 }) : "",
    svg("text", { class: "name", x: 9, y: 17 }, svg("tspan", {}, "\u2068" + name + "\u2069"), svg("tspan", { class: "kind", "font-weight": 400, dx: 5, "font-size": 11 }, shorten(operation.op, Math.max(4, 21 - name.length)))),
    svg("text", { class: "sub", x: 9, y: 33 }, "\u2068" + cut + "\u2069"),
    svg("text", { class: "sub", x: BOX.width - 8, y: 33, "text-anchor": "end" }, part),
  );
  element.addEventListener("mousemove", (event) => showTip(event, label));
  element.addEventListener("mouseleave", hideTip);
  return pressable(element, () => choose("operation", node.operation));
};

const listOperators = () => {
  const heads = [["operator"], ["kind"], ["cut"], ["critical", "num"], ["kernels", "num"], ["moved", "num"]];
  const costs = plan.selector === "fastest" ? [] : ["repartition", "join", "aggregation"];  // of the paper
  heads.push(...costs.map((name) => [name, "num"]));
  const cell = (text) => html("td", { class: "num" }, text);
  const rows = plan.ops.map((operation, index) =>
    pressable(
      html("tr", {}, html("th", { scope: "row", class: "name" }, named(operation.name, 60)), html("td", {}, named(operation.op, 40)), html("td", {}, formatCut(operation)),
        cell(operation.time ? formatMs(operation.time.critical_ms) : "–"), cell(operation.time ? formatMs(operation.time.compute_ms) : "–"), cell(operation.moves.bytes ? formatBytes(operation.moves.bytes) : "–"),
        ...costs.map((name) => cell(groups(String(operation.cost[name]))))),
      () => choose("operation", index),
    ),
  );
  return table(heads, rows);
};

const startModel = () => {
  drawModel();
  const details = byId("operators").parentElement;
  details.addEventListener("toggle", () => byId("operators").childElementCount || replace(byId("operators"), listOperators()));
  const critical = (index) => (plan.ops[index].time ? plan.ops[index].time.critical_ms : sumCost(plan.ops[index]));
  const first = raw.model.nodes.map((node) => node.operation).sort((a, b) => critical(b) - critical(a) || a - b)[0];
  if (first !== undefined) choose("operation", first);
  const holder = byId("model-picture");
  holder.scrollLeft = (holder.scrollWidth - holder.clientWidth) / 2;
};
