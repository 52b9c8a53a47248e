// Everything is started once; what fails says so in its place and leaves the rest.
const start = (id, action) => {
  try {
    return action();
  } catch (error) {
    console.error(error);
    const place = byId(id);
    if (place) place.append(html("p", { class: "note" }, `This picture could not be drawn: ${error.message}`));
    return null;
  }
};
if (raw.kind === "plan") {
  start("model", startModel);
  window.eincTimeline = start("timeline", startTimeline);
  start("timeline", showIdle);
}
if (machine) start("machine", startMachine);
if (raw.programs) start("exchanges", startExchanges);
if (raw.kind === "plan") {
  start("memory", startMemory);
  if (raw.comparison) start("comparison", startComparison);
}
window.eincDocument = plan;
document.documentElement.dataset.ready = "yes";
