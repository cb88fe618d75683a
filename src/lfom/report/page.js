"use strict";
// Draws every figure from the JSON beside it. Texts go in as text nodes, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function node(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== null) made.textContent = text;
  return made;
}

function element(name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== null) made.textContent = text;
  return made;
}

// Round tick values, about `count` of them, between low and high.
function linearTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) ticks.push(k * step);
  return ticks;
}

// Powers of ten; with 2 and 5 between them where there are fewer than two.
function decadeTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const factors = Math.log10(high / low) < 2 ? [1, 2, 5] : [1];
  const stride = Math.max(1, Math.ceil((last - first) / count));
  const ticks = [];
  for (let k = first; k <= last; k += stride) ticks.push(...factors.map((factor) => factor * 10 ** k));
  return ticks.filter((tick) => tick >= low && tick <= high);
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  return Number(value.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 6 }).replace("-", "\u2212");
}

// One mark of a kind of training: circle, square, open diamond or dot.
function mark(series, x, y) {
  const paint = { fill: colourOf(series), stroke: colourOf(series), "stroke-width": 1.5 };
  const full = { dot: 1.8, circle: 3.4, square: 3.2, diamond: 5 }[series.shape] + series.layer;
  const r = series.points.length > 10 ? 0.7 * full : full;
  if (series.shape === "square") return node("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...paint });
  if (series.shape === "diamond") {
    const d = `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`;
    return node("path", { d, ...paint, fill: "var(--paper)" });
  }
  return node("circle", { cx: x, cy: y, r, ...paint });
}

const path = (places) => places.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const colourOf = (series) => `var(--curve-${series.colour})`;
const lineStyle = (series) => ({
  fill: "none", stroke: colourOf(series), "stroke-width": series.width, "stroke-linejoin": "round",
  ...(series.dashed ? { "stroke-dasharray": "6 4" } : {}),
});

class Chart {
  constructor(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    Object.assign(this, data);
    this.on = this.series.map((series) => series.main);
    this.at = null; // the point that is read out: [series, index]
    this.plot = element("div", { class: "plot" });
    this.svg = node("svg", {
      tabindex: 0, role: "img",
      "aria-label": `${this.title}. Arrow keys read out the points; the numbers are in the table below.`,
    });
    this.tip = element("div", { class: "tip", role: "status", hidden: "" });
    this.plot.append(this.svg, this.tip);
    figure.prepend(this.plot, this.makeLegend());
    this.listen();
    this.draw();
  }

  makeLegend() {
    const legend = element("div", { class: "legend", role: "group", "aria-label": "Curves shown" });
    this.buttons = this.series.map((series, k) => {
      const button = element("button", { type: "button", "aria-pressed": this.on[k] });
      const swatch = node("svg", { width: 28, height: 14, "aria-hidden": "true" });
      swatch.append(node("path", { d: "M0 7H28", ...lineStyle(series) }), mark(series, 14, 7));
      button.append(swatch, element("span", {}, series.label));
      button.addEventListener("click", () => this.show(this.on.map((on, j) => (j === k ? !on : on))));
      button.addEventListener("pointerenter", () => this.highlight(k));
      button.addEventListener("pointerleave", () => this.highlight(null));
      legend.append(button);
      return button;
    });
    if (!this.on.every(Boolean)) {
      const all = element("button", { type: "button", class: "all" }, "Show all");
      all.addEventListener("click", () => {
        const every = this.on.every(Boolean);
        this.show(this.series.map((series) => !every || series.main));
      });
      this.all = all;
      legend.append(all);
    }
    return legend;
  }

  show(on) {
    this.on = on;
    this.buttons.forEach((button, k) => button.setAttribute("aria-pressed", on[k]));
    if (this.all) this.all.textContent = on.every(Boolean) ? "Main curves only" : "Show all";
    this.at = null;
    this.draw();
  }

  listen() {
    const follow = (event) => {
      const box = this.svg.getBoundingClientRect();
      const scale = this.width / box.width;
      this.read(this.nearest((event.clientX - box.left) * scale, (event.clientY - box.top) * scale));
    };
    this.svg.addEventListener("pointermove", follow);
    this.svg.addEventListener("pointerdown", follow);
    this.svg.addEventListener("pointerleave", (event) => event.pointerType === "touch" || this.read(null));
    this.svg.addEventListener("focus", () => this.at || this.read(this.first()));
    this.svg.addEventListener("blur", () => this.read(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.plot.clientWidth === this.width || this.draw()).observe(this.plot);
  }

  shown() {
    return this.series.map((_, k) => k).filter((k) => this.on[k]);
  }

  first() {
    return this.shown().length ? [this.shown()[0], 0] : null;
  }

  key(event) {
    if (event.key === "Escape") return this.read(null);
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move || !this.first()) return;
    event.preventDefault();
    if (!this.at) return this.read(this.first());
    const shown = this.shown();
    const k = shown[(shown.indexOf(this.at[0]) + move[0] + shown.length) % shown.length];
    const last = this.series[k].points.length - 1;
    this.read([k, Math.min(last, Math.max(0, this.at[1] + move[1]))]);
  }

  // Scales to the curves that are shown; values that are zero to rounding do not count.
  scale() {
    const points = this.shown().flatMap((k) => this.series[k].points);
    const xs = this.series.flatMap((series) => series.points.map((point) => point.x));
    const ys = points.filter((p) => p.y !== null).flatMap((p) => [p.y - (p.e || 0), p.y + (p.e || 0)]);
    let low = ys.length ? Math.min(...ys) : -1;
    let high = ys.length ? Math.max(...ys) : 1;
    const margin = 0.05 * (high - low) || Math.max(0.1, 0.05 * Math.abs(high));
    low -= margin;
    high += margin;
    const value = this.log ? Math.log10 : Number;
    let [left, right] = [value(Math.min(...xs)), value(Math.max(...xs))];
    const gap = 0.03 * (right - left) || 0.5;
    left -= gap;
    right += gap;
    const area = { left: 52, right: this.width - 24, top: 22, bottom: this.height - 40 };
    this.px = (x) => area.left + ((value(x) - left) / (right - left)) * (area.right - area.left);
    this.py = (y) => (y === null ? area.bottom : area.bottom - ((y - low) / (high - low)) * (area.bottom - area.top));
    this.area = area;
    this.range = { low, high, left: this.log ? 10 ** left : left, right: this.log ? 10 ** right : right };
  }

  draw() {
    this.width = this.plot.clientWidth || 640;
    this.height = Math.round(Math.min(400, Math.max(270, this.width * 0.55)));
    this.scale();
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.curves = this.series.map((series, k) => (this.on[k] ? this.drawCurve(series) : null));
    this.ring = node("g");
    // Wide lines first: a thin one on top of them stays visible.
    const order = this.shown().sort((j, k) => this.series[k].width - this.series[j].width);
    this.svg.replaceChildren(this.drawAxes(), ...order.map((k) => this.curves[k]), this.ring);
    this.read(this.at);
  }

  drawAxes() {
    const { left, right, top, bottom } = this.area;
    const axes = node("g", { "aria-hidden": "true" });
    for (const y of linearTicks(this.range.low, this.range.high, 6)) {
      axes.append(node("path", { class: "grid", d: `M${left} ${this.py(y)}H${right}` }));
      axes.append(node("text", { x: left - 7, y: this.py(y) + 4, "text-anchor": "end" }, tickText(y)));
    }
    const some = Math.max(3, Math.floor((right - left) / 90));
    const find = this.log ? decadeTicks : linearTicks;
    for (const x of this.ticks || find(this.range.left, this.range.right, some)) {
      axes.append(node("path", { class: "axis", d: `M${this.px(x)} ${bottom}v5` }));
      axes.append(node("text", { x: this.px(x), y: bottom + 18, "text-anchor": "middle" }, tickText(x)));
    }
    axes.append(node("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
    axes.append(node("text", { x: (left + right) / 2, y: this.height - 5, "text-anchor": "middle" }, this.x));
    axes.append(node("text", { x: 2, y: 12 }, this.y));
    return axes;
  }

  drawCurve(series) {
    const colour = colourOf(series);
    const group = node("g", { class: "curve" });
    const inside = series.points.filter((point) => point.y !== null);
    const place = (point, shift) => [this.px(point.x), this.py(point.y + shift * (point.e || 0))];
    if (series.band && inside.length > 1) {
      const around = [...inside.map((p) => place(p, 1)), ...inside.map((p) => place(p, -1)).reverse()];
      group.append(node("path", { d: `${path(around)}Z`, fill: colour, opacity: 0.14 }));
    } else {
      for (const p of inside.filter((point) => point.e)) {
        group.append(node("path", { d: path([place(p, -1), place(p, 1)]), stroke: colour, "stroke-width": 1 }));
      }
    }
    const line = series.points.map((point) => [this.px(point.x), this.py(point.y)]);
    group.append(node("path", { d: path(line), ...lineStyle(series) }));
    inside.forEach((p) => group.append(mark(series, this.px(p.x), this.py(p.y))));
    for (const point of series.points.filter((p) => p.floored)) {
      const x = this.px(point.x);
      const d = `M${x - 6} ${this.area.bottom - 9}H${x + 6}L${x} ${this.area.bottom}Z`;
      group.append(node("path", { class: "floored", d, fill: colour }));
    }
    return group;
  }

  nearest(x, y) {
    let best = null;
    let least = Infinity;
    for (const k of this.shown()) {
      this.series[k].points.forEach((point, index) => {
        const distance = Math.hypot(this.px(point.x) - x, this.py(point.y) - y);
        if (distance < least) [least, best] = [distance, [k, index]];
      });
    }
    return best;
  }

  highlight(k) {
    this.curves.forEach((curve, j) => curve && curve.classList.toggle("dim", k !== null && this.on[k] && j !== k));
  }

  // Reads out one point in the box beside it, or closes the box.
  read(at) {
    this.at = at;
    this.ring.replaceChildren();
    this.tip.hidden = !at;
    this.highlight(at ? at[0] : null);
    if (!at) return;
    const series = this.series[at[0]];
    const point = series.points[at[1]];
    const [x, y] = [this.px(point.x), this.py(point.y)];
    this.ring.append(node("circle", { class: "ring", cx: x, cy: y, r: 7 }));
    this.tip.replaceChildren(
      element("b", {}, series.label),
      element("div", {}, `${this.x}: ${point.at}`),
      element("div", {}, `${this.y}: ${point.text}`),
    );
    const scale = this.plot.clientWidth / this.width;
    const [wide, high] = [this.tip.offsetWidth, this.tip.offsetHeight];
    const left = Math.min(Math.max(0, x * scale + 14), this.plot.clientWidth - wide);
    const above = y * scale - high - 12;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${above > 0 ? above : y * scale + 14}px`;
  }
}

document.querySelectorAll("figure.chart").forEach((figure) => new Chart(figure));
