// The tasks as typed arrays, in the order of their starts.
const KERNEL = 0, COMBINE = 1, TRANSFER = 2;
const KINDS = ["kernel", "aggregation or copy", "transfer"];
const readTasks = (columns) => {
  if (!columns) return null;
  const count = columns.start.length;
  const start = new Float64Array(count), end = new Float64Array(count);
  let at = 0;
  for (let n = 0; n < count; n++) {
    at += columns.start[n];
    start[n] = at;
    end[n] = at + columns.length[n];
  }
  const critical = new Uint8Array(count);
  for (const n of columns.critical) critical[n] = 1;
  return {
    count, start, end, critical, labels: columns.labels, last: columns.end, chain: columns.critical,
    kind: Uint8Array.from(columns.kind), site: Int32Array.from(columns.site), target: Int32Array.from(columns.target),
    label: Int32Array.from(columns.label), tensor: Int32Array.from(columns.tensor),
    bytes: columns.bytes ? Float64Array.from(columns.bytes) : null, cause: columns.cause ? Int32Array.from(columns.cause) : null,
    error: columns.error ? Uint8Array.from(columns.error) : null,
  };
};
const tasks = readTasks(readColumns(raw.tasks));
const measured = raw.measured ? { start: Float64Array.from(raw.measured.start), length: Float64Array.from(raw.measured.length), last: raw.measured.end } : null;

const nameLabel = (label) => (label[1] ? `output ${shorten(label[0], 60)}` : shorten(label[0], 60));
const describeTask = (n) => {
  const kind = tasks.kind[n], bytes = tasks.bytes[n];
  const tensor = isolated(raw.tensors[tasks.tensor[n]][0], 60), serves = isolated(nameLabel(tasks.labels[tasks.label[n]]), 80);
  const what = kind === TRANSFER ? `${tensor} from site ${tasks.site[n]} to site ${tasks.target[n]}, ${formatBytes(bytes)}` : `${tensor} at site ${tasks.site[n]}`;
  const when = `${formatTime((tasks.end[n] - tasks.start[n]) / NS)}${tasks.error ? ` ± ${tasks.error[n]}%` : ""} from ${formatTime(tasks.start[n] / NS)}`;
  return `${KINDS[kind]}: ${what}, for ${serves}; ${when}${tasks.critical[n] ? "; on the critical path" : ""}`;
};
const describeWait = (n) => {
  if (!tasks.cause[n]) return "waiting for nothing: it was the site's turn";
  const before = n - tasks.cause[n];
  const serves = isolated(nameLabel(tasks.labels[tasks.label[before]]), 60);
  return tasks.kind[before] === TRANSFER
    ? `waiting for a transfer from site ${tasks.site[before]}, for ${serves}`
    : `waiting for ${KINDS[tasks.kind[before]]} ${serves} at site ${tasks.site[before]}`;
};

// The resources that a transfer crosses, by "source>target".
const routes = new Map();
(machine ? machine.resources : []).forEach((resource, r) => {
  for (const [a, b] of resource.pairs) {
    const pair = a * 4096 + b;
    if (!routes.has(pair)) routes.set(pair, []);
    routes.get(pair).push(r);
  }
});
const findRoute = (source, target) => routes.get(source * 4096 + target) || [];
const GB = 1e6; // bytes per millisecond of one GB/s
const latency = machine ? machine.transfer_latency_us * 1e3 : 0; // ns

// The share of each resource that is in use at a moment, if every transfer has its mean rate while it moves.
const measureUse = (moment) => {
  const use = new Float64Array(machine.resources.length);
  if (!tasks) return use;
  for (let n = 0; n < tasks.count && tasks.start[n] <= moment; n++) {
    if (tasks.kind[n] !== TRANSFER || tasks.end[n] <= moment) continue;
    const begin = Math.min(tasks.start[n] + latency, tasks.end[n]);
    if (begin > moment || tasks.end[n] <= begin) continue;
    const rate = tasks.bytes[n] / ((tasks.end[n] - begin) / NS);
    for (const r of findRoute(tasks.site[n], tasks.target[n])) use[r] += rate / (machine.resources[r].gbs * GB);
  }
  return use;
};
