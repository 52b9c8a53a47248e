// The timeline: zoom, search, critical path, idle time, and the moment that other pictures show.
const MAX_LINKS = 16;

const startTimeline = () => {
  if (!tasks) return replace(byId("timeline-picture"), html("p", {}, "This plan is too large to be timed here."));
  const whole = Math.max(tasks.last, measured ? measured.last : 0, 1);
  const view = { first: 0, last: whole, left: 104, width: 100 };
  const rows = makeRows(tasks, true, Boolean(measured));
  const sites = rows.filter((row) => row.kind === "site"), links = rows.filter((row) => row.kind === "link");
  const look = { all: links.length <= MAX_LINKS, only: false, found: null };
  const shown = () => [...sites, ...(look.all ? links : links.slice(0, MAX_LINKS))];
  const top = 26;
  const height = () => top + shown().reduce((sum, row) => sum + row.height, 0) + (links.length ? 10 : 0) + 6;
  const colours = () => [colour("kernel"), colour("combine"), colour("transfer"), colour("idle")];

  const late = measured ? { count: tasks.count, start: measured.start, end: measured.start.map((start, n) => start + measured.length[n]), critical: tasks.critical } : null;
  const lateRows = late ? sites.map((row) => ({ ...row, reach: null, tasks: row.tasks.filter((n) => late.start[n] >= 0).sort((a, b) => late.start[a] - late.start[b]) })) : [];

  // The names of operators in bars of kernels that are wide enough for some letters.
  const nameBars = (context, row, baseline) => {
    const scale = view.width / (view.last - view.first);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("card");
    for (const n of row.tasks) {
      const x = view.left + (Math.max(view.first, tasks.start[n]) - view.first) * scale;
      const room = view.left + (Math.min(view.last, tasks.end[n]) - view.first) * scale - x - 6;
      if (room < 26 || tasks.kind[n] !== KERNEL) continue;
      const [name] = tasks.labels[tasks.label[n]];
      const shown = context.measureText(name).width <= room ? name : name.split(".").pop();
      context.fillText(clipText(context, shown, room), x + 3, baseline);
    }
  };

  const draw = (context, width) => {
    view.left = width < 500 ? 70 : 104;
    view.width = width - view.left - 2;
    drawAxis(context, view, top, height() - top - 4);
    let y = top + 2;
    const palette = colours();
    const marked = look.found === null ? null : (n) => look.found[tasks.label[n]];
    let before = "site";
    shown().forEach((row, at) => {
      if (row.kind !== before) y += 10;
      before = row.kind;
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = row.kind === "site" ? colour("ink") : colour("soft");
      context.textBaseline = "middle";
      if (row.kind === "site") {
        context.fillStyle = siteColour(row.site);
        context.fillRect(0, y + 2, 6, row.height - 6);
        context.fillStyle = colour("ink");
        context.fillText(row.name, 12, y + (row.height - 4) / 2);
      } else {
        context.font = "11px system-ui, sans-serif";
        context.fillText(clipText(context, row.name, view.left - 8), 0, y + (row.height - 4) / 2);
      }
      context.textBaseline = "alphabetic";
      context.fillStyle = colour("idle");
      context.fillRect(view.left, y + 1, view.width, (row.kind === "site" ? 17 : 10));
      context.save();
      context.beginPath();
      context.rect(view.left, 0, view.width, 1e6);
      context.clip();
      drawRow(context, tasks, row, view, y + 1, {
        height: row.kind === "site" ? 17 : 10, colours: palette, colour: look.only ? (n) => (tasks.critical[n] ? tasks.kind[n] : -1) : (n) => tasks.kind[n],
        hatched: COMBINE, critical: true, marked,
      });
      if (row.kind === "site" && !look.only) nameBars(context, row, y + 13.5);
      if (late && row.kind === "site") drawRow(context, late, lateRows[at], view, y + 21, { height: 6, colours: palette, colour: (n) => tasks.kind[n], hatched: -1 });
      context.restore();
      y += row.height;
    });
    if (chosen.moment !== null) {
      const x = view.left + ((chosen.moment - view.first) / (view.last - view.first)) * view.width;
      if (x >= view.left && x <= view.left + view.width) {
        context.fillStyle = colour("warn");
        context.fillRect(x - 0.75, top - 4, 1.5, height());
        context.beginPath();
        context.moveTo(x - 6, top - 8);
        context.lineTo(x + 6, top - 8);
        context.lineTo(x, top);
        context.fill();
      }
    }
  };
  const label = `Timeline of ${formatCount(tasks.count, "task")} on ${formatCount(sites.length, "site")} and ${formatCount(links.length, "link")}. Arrow keys move, plus and minus zoom, 0 shows all.`;
  const { canvas, repaint, paint } = makeCanvas(byId("timeline-picture"), height, label, draw);
  const detail = byId("timeline-detail");
  const say = (text) => replace(detail, document.createTextNode(text));

  const show = (first, last) => {
    const length = Math.min(whole, Math.max(20, last - first));
    view.first = Math.min(Math.max(0, first), whole - length);
    view.last = view.first + length;
    repaint();
  };
  const zoom = (factor, at = (view.first + view.last) / 2) => show(at - (at - view.first) * factor, at + (view.last - at) * factor);
  const pan = (share) => show(view.first + share * (view.last - view.first), view.last + share * (view.last - view.first));
  const locate = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const time = view.first + ((x - view.left) / view.width) * (view.last - view.first);
    let at = top + 2, before = "site", row = null;
    for (const one of shown()) {
      if (one.kind !== before) at += 10;
      before = one.kind;
      if (y >= at && y < at + one.height) row = one;
      at += one.height;
    }
    return { time, row, inside: x >= view.left && x <= view.left + view.width };
  };
  const describe = ({ time, row }) => {
    if (!row) return null;
    const n = findTaskAt(tasks, row, time, (1.5 / view.width) * (view.last - view.first));
    if (n >= 0) return [n, describeTask(n) + (late && late.start[n] >= 0 ? `; measured ${formatTime(measured.length[n] / NS)} from ${formatTime(measured.start[n] / NS)}` : "")];
    if (row.kind === "link") return [-1, `${isolated(row.name, 60)}: nothing crosses it at ${formatTime(time / NS)}`];
    const next = row.tasks.find((task) => tasks.start[task] >= time);
    const reason = next === undefined ? "it has run its last task" : describeWait(next);
    return [-1, `site ${row.site} is idle at ${formatTime(time / NS)}: ${reason}`];
  };
  canvas.addEventListener("mousemove", (event) => {
    const place = locate(event);
    const found = place.inside && !dragged ? describe(place) : null;
    canvas.style.cursor = found ? "crosshair" : "default";
    if (found) showTip(event, found[1]);
    else hideTip();
  });
  canvas.addEventListener("mouseleave", hideTip);
  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => (dragged = { x: event.clientX, first: view.first, last: view.last, moved: false }));
  addEventListener("pointermove", (event) => {
    if (!dragged || !(event.buttons & 1)) return;
    const away = event.clientX - dragged.x;
    if (Math.abs(away) > 4) dragged.moved = true;
    if (dragged.moved) {
      const shift = (-away / view.width) * (dragged.last - dragged.first);
      show(dragged.first + shift, dragged.last + shift);
    }
  });
  addEventListener("pointerup", () => setTimeout(() => (dragged = null), 0));
  canvas.addEventListener("click", (event) => {
    if (dragged && dragged.moved) return;
    const place = locate(event);
    if (!place.inside) return;
    choose("moment", Math.min(whole, Math.max(0, place.time)));
    const found = describe(place);
    if (!found) return;
    say(found[1]);
    if (found[0] >= 0) {
      const [name, isOutput] = tasks.labels[tasks.label[found[0]]];
      const index = isOutput ? -1 : plan.ops.findIndex((operation) => operation.name === name);
      if (index >= 0) choose("operation", index);
    }
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * 0.002), locate(event).time);
    else pan((event.deltaX || event.deltaY) * 0.001);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => show(0, whole), Home: () => show(0, view.last - view.first), End: () => show(whole, 2 * whole) }[event.key];
    if (step) {
      event.preventDefault();
      step();
    }
  });

  const search = html("input", { type: "search", id: "timeline-search", placeholder: "Search for an operator ( / )", "aria-label": "Search for an operator in the timeline" });
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    look.found = wanted ? tasks.labels.map((one) => one[0].toLowerCase().includes(wanted)) : null;
    repaint();
    if (look.found === null) return say("");
    let count = 0, first = Infinity, last = 0;
    for (let n = 0; n < tasks.count; n++) {
      if (!look.found[tasks.label[n]]) continue;
      count++;
      first = Math.min(first, tasks.start[n]);
      last = Math.max(last, tasks.end[n]);
    }
    say(count ? `${formatCount(count, "task")} of ${formatCount(look.found.filter(Boolean).length, "operator")}, from ${formatTime(first / NS)} to ${formatTime(last / NS)}; Enter shows them` : "no operator has this in its name");
    search.span = count ? [first, last] : null;
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !search.span) return;
    const [first, last] = search.span, room = Math.max(0.05 * (last - first), 50);
    show(first - room, last + room);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    search.focus();
  });
  const only = button("Critical path only", () => {
    look.only = !look.only;
    only.setAttribute("aria-pressed", String(look.only));
    repaint();
  }, { "aria-pressed": "false", id: "critical-only" });
  const more = links.length > MAX_LINKS ? button(`All ${links.length} links`, () => {
    look.all = !look.all;
    more.setAttribute("aria-pressed", String(look.all));
    paint();
  }, { "aria-pressed": "false" }) : "";
  fill(byId("timeline-tools"), {}, [
    button("−", () => zoom(1 / 0.6), { "aria-label": "Zoom out" }), button("+", () => zoom(0.6), { "aria-label": "Zoom in", id: "zoom-in" }), button("All", () => show(0, whole), { id: "zoom-all" }), only, more, search,
    key("kernel", "var(--kernel)"), key("aggregation, copy", "var(--combine)", true), key("transfer", "var(--transfer)"), key("idle", "var(--idle)"),
  ]);
  say(`${formatCount(tasks.count, "task")}, of which ${groups(String(tasks.chain.length))} decide the end. Choose a bar or a gap for details; drag, or hold Ctrl and scroll, to move and zoom.`);
  onChange("moment", repaint);
  return { view, show, zoom, paint };
};

const IDLE = [["kernel_ms", "kernels", "kernel"], ["combine_ms", "combining", "combine"], ["waits_transfer_ms", "idle: waiting for a transfer", "transfer"], ["waits_site_ms", "idle: waiting for another site's work", "soft"], ["end_ms", "idle: nothing left to do", "idle"]];
const showIdle = () => {
  const panel = byId("idle");
  if (!raw.idle) return replace(panel, html("p", {}, "Sites share the cores of one machine here, so that no site is idle by itself."));
  const whole = plan.predicted_ms || 1;
  const rows = raw.idle.slice(0, 128).map((row, site) => {
    const track = html("span", { class: "track" });
    let at = 0;
    for (const [field, label, name] of IDLE) {
      const part = html("span", { title: `${label}: ${formatMs(row[field])}` });
      part.style.cssText = `position:absolute;top:0;bottom:0;left:${(100 * at) / whole}%;width:${(100 * row[field]) / whole}%;background:${field === "combine_ms" || field === "waits_transfer_ms" ? `repeating-linear-gradient(${field === "combine_ms" ? 45 : -45}deg, var(--${name}) 0 3px, transparent 3px 5px)` : `var(--${name})`}`;
      at += row[field];
      track.append(part);
    }
    const idle = row.waits_transfer_ms + row.waits_site_ms + row.end_ms;
    return html("tr", {}, html("th", { scope: "row" }, `site ${site}`), html("td", {}, track), html("td", { class: "value" }, `${percent(idle / whole)} idle`));
  });
  const grid = html("table", { class: "bars" }, rows);
  for (const row of grid.rows) {
    row.cells[0].style.width = "72px";
    row.cells[2].style.width = "90px";
  }
  replace(panel, html("h3", {}, "Idle time, and its reason"), html("div", { class: "tools" }, IDLE.map(([field, label, name]) => key(label, `var(--${name})`, field === "combine_ms" || field === "waits_transfer_ms"))), grid,
    html("p", { class: "what" }, "Each row is the predicted time of one site. A site waits for a transfer if that was the last thing to end before its next task could start."));
};
