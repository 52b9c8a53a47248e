// The data of the page: read once, with parts that stand there once put back in their places. What is long is compressed.
const inflate = (text) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
};
const readElement = async (element) => JSON.parse(element.type === "application/json" ? element.textContent : await inflate(element.textContent));
const raw = await readElement(document.getElementById("data"));
const isReference = (field) =>
  field !== null && typeof field === "object" && !Array.isArray(field) && Object.keys(field).length === 1 && "$" in field;
const readField = (field) => (isReference(field) ? raw.shared[field.$] : field);
const readRow = (row) => {
  if (row === null || typeof row !== "object" || Array.isArray(row)) return row;
  return Object.fromEntries(Object.entries(row).map(([name, field]) => [name, readField(field)]));
};
const plan = raw.document
  ? Object.fromEntries(
      Object.entries(raw.document).map(([name, field]) => [name, Array.isArray(field) ? field.map(readRow) : field]),
    )
  : null;

// Pairs of a resource that are all of some sites with some others are written as ranges of these.
const readRanges = (ranges) => ranges.flatMap((first, n) => (n % 2 ? [] : Array.from({ length: ranges[n + 1] - first }, (_, k) => first + k)));
const readPairs = (pairs) => (pairs.from ? readRanges(pairs.from).flatMap((a) => readRanges(pairs.to).filter((b) => b !== a).map((b) => [a, b])) : pairs);
const machine = raw.machine && { ...raw.machine, resources: raw.machine.resources.map((resource) => ({ ...resource, pairs: readPairs(resource.pairs) })) };

// Columns whose values stand there several times in turn are written as values and counts.
const readColumn = (column) => (column && column.runs ? column.runs.flatMap((value, n) => (n % 2 ? [] : Array(column.runs[n + 1]).fill(value))) : column);
const readColumns = (columns) => columns && Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, readColumn(column)]));
const readRows = (columns) => {
  const lists = Object.values(readColumns(columns));
  return (lists[0] || []).map((_, n) => lists.map((list) => list[n]));
};
const readDrawn = (drawn) => drawn && { ...drawn, copies: readRows(drawn.copies), flows: readRows(drawn.flows) };
const programs = (raw.programs || []).map((row) => ({ ...row, exchange: readField(row.exchange), drawn: readDrawn(row.drawn) }));

// What the person has chosen, and who wants to know of it.
const chosen = { operation: null, moment: null, site: 0, program: 0 };
const listeners = {};
const onChange = (name, listener) => (listeners[name] = listeners[name] || []).push(listener);
const choose = (name, value) => {
  chosen[name] = value;
  for (const listener of listeners[name] || []) listener(value);
};
