"use strict";
// The readout under the pointer. Each figure carries its numbers as JSON, each plot its two scales.
const format = (value) =>
  value === null ? "not finite" : Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
const nearest = (steps, wanted) => {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low > 0 && wanted - steps[low - 1] < steps[low] - wanted ? low - 1 : low;
};
const make = (plot, kind) => plot.appendChild(Object.assign(document.createElement("div"), { className: kind, hidden: true }));
for (const figure of document.querySelectorAll(".chart")) {
  const lines = JSON.parse(figure.querySelector("script").textContent).filter((line) => line.x.length);
  if (!lines.length) continue;
  for (const plot of figure.querySelectorAll(".plot")) {
    const [x0, x1, log] = plot.dataset.x.split(",").map(Number);
    const [y0, y1] = plot.dataset.y.split(",").map(Number);
    const across = (step) => (log ? Math.log(Math.max(step, x0) / x0) / Math.log(x1 / x0) : (step - x0) / (x1 - x0));
    const stepAt = (part) => (log ? x0 * Math.pow(x1 / x0, part) : x0 + part * (x1 - x0));
    const cross = make(plot, "cross"), tip = make(plot, "tip"), dot = make(plot, "dot");
    const hide = () => { cross.hidden = tip.hidden = dot.hidden = true; };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const wanted = stepAt(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
      const step = lines[0].x[nearest(lines[0].x, wanted)];
      const left = across(step) * box.width;
      const found = lines.map((line) => [line.name, line.y[nearest(line.x, step)]]);
      tip.textContent = "";
      for (const text of ["step " + step.toLocaleString("en"), ...found.map(([name, y]) => name + " " + format(y))]) {
        tip.appendChild(document.createElement("div")).textContent = text;
      }
      cross.hidden = tip.hidden = false;
      cross.style.left = left + "px";
      const value = found[found.length - 1][1];
      const height = value === null ? -1 : (value - y0) / (y1 - y0);
      dot.hidden = height < 0 || height > 1;
      dot.style.left = left + "px";
      dot.style.top = (1 - height) * box.height + "px";
      const width = tip.offsetWidth;
      tip.style.left = Math.max(0, left + 12 + width > box.width ? left - 12 - width : left + 12) + "px";
    });
    plot.addEventListener("pointerleave", hide);
  }
}
// One preview at a time, the last one first.
const panels = [...document.querySelectorAll(".panel")];
const slider = document.querySelector(".slider");
if (slider && panels.length > 1) {
  const [input, output] = slider.children;
  const show = () => {
    panels.forEach((panel, index) => { panel.hidden = index !== Number(input.value); });
    output.textContent = Number(input.value) + 1 + " of " + panels.length;
  };
  slider.hidden = false;
  input.addEventListener("input", show);
  show();
}
