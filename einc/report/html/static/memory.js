// The memory of one site over time: what is in use, by what it is for, and where the peak is.
const HELD = [["weights", "weight"], ["inputs", "input"], ["states", "state"], ["outputs", "output"], ["computed here", "value"], ["received", "received"]];

const startMemory = () => {
  const data = readColumns(raw.memory);
  if (!data) return replace(byId("memory-picture"), html("p", {}, "This plan is too large to be timed here."));
  const whole = Math.max(1, tasks.last), view = { first: 0, last: whole, left: 76, width: 100 }, top = 24, tall = 240;
  const bySite = plan.memory_bytes.map(() => []);
  data.site.forEach((site, n) => bySite[site].push(n));
  const known = new Map();
  let weights = true;

  // Steps: the bytes of every kind from each instant at which something changes, and the greatest sum.
  const findSteps = (site) => {
    const id = `${site} ${weights}`;
    if (known.has(id)) return known.get(id);
    const events = [];
    for (const n of bySite[site]) {
      if ((!weights && data.kind[n] === 0) || data.last[n] === data.first[n]) continue;
      events.push([data.first[n], data.bytes[n], data.kind[n]], [data.last[n] >= whole ? whole + 1 : data.last[n], -data.bytes[n], data.kind[n]]);
    }
    events.sort((a, b) => a[0] - b[0]);
    const times = [], sums = [], now = HELD.map(() => 0);
    let peak = 0, peakAt = 0;
    for (let at = 0; at < events.length; at++) {
      now[events[at][2]] += events[at][1];
      if (at + 1 < events.length && events[at + 1][0] === events[at][0]) continue;
      const total = now.reduce((sum, one) => sum + one, 0);
      times.push(events[at][0]);
      sums.push([...now, total]);
      if (total > peak) {
        peak = total;
        peakAt = events[at][0];
      }
    }
    const steps = { times, sums, peak, peakAt };
    known.set(id, steps);
    return steps;
  };
  const findStep = (steps, time) => {
    let low = 0, high = steps.times.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (steps.times[mid] <= time) low = mid + 1;
      else high = mid;
    }
    return low - 1;
  };
  const draw = (context, width) => {
    view.width = width - view.left - 6;
    const site = chosen.site, steps = findSteps(site), arena = plan.memory_bytes[site];
    const most = Math.max(weights ? arena : 0, steps.peak, 1) * 1.06;
    drawAxis(context, view, top, tall, 7);
    const y = (bytes) => top + tall - (bytes / most) * tall;
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      const bytes = (weights ? Math.max(arena, steps.peak) : steps.peak) * share;
      context.fillStyle = colour("soft");
      context.fillText(formatBytes(Math.round(bytes)), view.left - 6, y(bytes) + 4);
      context.fillStyle = colour("faint");
      context.fillRect(view.left, y(bytes), view.width, 1);
    }
    context.textAlign = "left";
    const paints = HELD.map(([, name]) => colour(name));
    for (let x = 0; x < view.width; x++) {
      const from = (x / view.width) * whole, to = ((x + 1) / view.width) * whole;
      let at = findStep(steps, from), best = at;
      while (at + 1 < steps.times.length && steps.times[at + 1] < to) {
        at++;
        if (best < 0 || steps.sums[at][HELD.length] > steps.sums[best][HELD.length]) best = at;
      }
      if (best < 0) continue;
      let base = 0;
      for (let kind = 0; kind < HELD.length; kind++) {
        const bytes = steps.sums[best][kind];
        if (bytes <= 0) continue;
        context.fillStyle = paints[kind];
        context.globalAlpha = (kind === 5 || kind === 3) && (x % 6 < 2) ? 0.45 : 1;
        context.fillRect(view.left + x, y(base + bytes), 1.02, y(base) - y(base + bytes));
        base += bytes;
      }
      context.globalAlpha = 1;
    }
    if (weights) {
      context.strokeStyle = colour("ink");
      context.setLineDash([6, 4]);
      context.beginPath();
      context.moveTo(view.left, y(arena));
      context.lineTo(view.left + view.width, y(arena));
      context.stroke();
      context.setLineDash([]);
    }
    const peakX = view.left + (steps.peakAt / whole) * view.width, peakY = y(steps.peak);
    context.fillStyle = colour("ink");
    context.beginPath();
    context.moveTo(peakX, peakY + 1);
    context.lineTo(peakX - 6, peakY + 11);
    context.lineTo(peakX + 6, peakY + 11);
    context.fill();
    if (chosen.moment !== null) {
      context.fillStyle = colour("warn");
      context.fillRect(view.left + (chosen.moment / whole) * view.width - 0.75, top - 4, 1.5, tall + 4);
    }
  };
  const { canvas, repaint } = makeCanvas(byId("memory-picture"), top + tall + 8, "The bytes in use at a site over time. Left and right arrows move the moment.", draw);
  const locate = (event) => ((event.clientX - canvas.getBoundingClientRect().left - view.left) / view.width) * whole;
  canvas.addEventListener("click", (event) => choose("moment", Math.min(whole, Math.max(0, locate(event)))));
  canvas.addEventListener("mousemove", (event) => {
    const time = locate(event), steps = findSteps(chosen.site), at = findStep(steps, time);
    if (time < 0 || time > whole || at < 0) return hideTip();
    showTip(event, `${formatBytes(steps.sums[at][HELD.length])} at ${formatTime(time / NS)}: ${HELD.map(([label], kind) => [label, steps.sums[at][kind]]).filter(([, bytes]) => bytes > 0).map(([label, bytes]) => `${label} ${formatBytes(bytes)}`).join(", ")}`);
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose("moment", Math.min(whole, Math.max(0, (chosen.moment || 0) + step * whole)));
  });
  const list = () => {
    const steps = findSteps(chosen.site), moment = chosen.moment === null ? steps.peakAt : chosen.moment;
    const there = bySite[chosen.site].filter((n) => data.first[n] <= moment && (data.last[n] > moment || data.last[n] >= whole)).sort((a, b) => data.bytes[b] - data.bytes[a] || a - b);
    const total = there.reduce((sum, n) => sum + data.bytes[n], 0);
    const rows = there.slice(0, 12).map((n) =>
      html("tr", {}, html("th", { scope: "row", class: "name" }, named(raw.tensors[data.tensor[n]][0], 60)), html("td", {}, HELD[data.kind[n]][0]), html("td", { class: "num" }, formatBytes(data.bytes[n])), html("td", { class: "num" }, data.kind[n] < 3 ? "always" : `${formatTime(data.first[n] / NS)} to ${formatTime(data.last[n] / NS)}`)),
    );
    const arena = plan.memory_bytes[chosen.site];
    const unused = arena - steps.peak;
    replace(
      byId("memory-detail"),
      html("h3", {}, `At site ${chosen.site} ${chosen.moment === null ? `at its peak, ${formatTime(steps.peakAt / NS)}` : `at ${formatTime(moment / NS)}`}: ${formatBytes(total)} in ${formatCount(there.length, "buffer")}`),
      html("div", { class: "scroll" }, table([["tensor"], ["what it is"], ["bytes", "num"], ["in use", "num"]], rows)),
      html("p", { class: "what" }, there.length > 12 ? `and ${there.length - 12} smaller ones. ` : "", weights ? `The arena takes ${formatBytes(arena)}; the peak of what is in use is ${formatBytes(steps.peak)}${unused > 0 ? `, so that ${formatBytes(unused)} lie between buffers` : ""}.` : ""),
    );
  };
  const tools = byId("memory-tools");
  if (plan.devices <= 16) {
    const buttons = plan.memory_bytes.map((bytes, site) => button(`${site}`, () => choose("site", site), { "aria-label": `site ${site}, ${formatBytes(bytes)}`, "aria-pressed": String(site === 0) }));
    onChange("site", (site) => buttons.forEach((one, at) => one.setAttribute("aria-pressed", String(at === site))));
    fill(tools, {}, ["site", ...buttons]);
  } else {
    const picker = html("select", { "aria-label": "Site", onchange: () => choose("site", Number(picker.value)) }, plan.memory_bytes.map((bytes, site) => html("option", { value: site }, `site ${site}: ${formatBytes(bytes)}`)));
    fill(tools, {}, picker);
  }
  const without = button("Without weights", () => {
    weights = !weights;
    without.setAttribute("aria-pressed", String(!weights));
    list();
    repaint();
  }, { "aria-pressed": "false", id: "without-weights" });
  const peak = button("At the peak", () => choose("moment", findSteps(chosen.site).peakAt));
  fill(tools, {}, [without, peak, ...HELD.map(([label, name], kind) => key(label, `var(--${name})`, kind === 3 || kind === 5))]);
  const refresh = () => {
    list();
    repaint();
  };
  onChange("site", refresh);
  onChange("moment", refresh);
  const fullest = plan.memory_bytes.indexOf(Math.max(...plan.memory_bytes));
  choose("site", fullest);
};
