"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const host = document.getElementById("charts");
  const smoothing = document.getElementById("smoothing");
  const logScale = document.getElementById("log-scale");
  const MARGIN = { left: 58, right: 14, top: 10, bottom: 26 };
  let weight = Number(smoothing.value);
  let cursor = null;  // the step under the crosshair of all charts

  // ---- words and numbers ----

  const grouped = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 });

  function plain(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) {
      return value.toExponential(4).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    return value.toLocaleString("en-US", { maximumSignificantDigits: 5 });
  }

  // Three digits and a prefix, as the program prints it.
  function prefixed(value, base, prefixes, unit) {
    let power = 0;
    while (Math.abs(value) >= base && power + 1 < prefixes.length) {
      value /= base;
      power += 1;
    }
    const digits = value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
    return (digits + " " + prefixes[power] + unit).trim();
  }

  const FORMATS = {
    number: plain,
    rate: (value) => prefixed(value, 1000, ["", "k", "M", "G", "T"], "") + " tok/s",
    bytes: (value) => prefixed(value, 1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi"], "B"),
  };
  const TICKS = {
    number: plain,
    rate: (value) => prefixed(value, 1000, ["", "k", "M", "G", "T"], ""),
    bytes: FORMATS.bytes,
  };
  const stepTick = (value) => prefixed(value, 1000, ["", "k", "M", "G"], "");

  // ---- scales ----

  function niceTicks(low, high, count, base) {
    const span = high - low;
    const unit = base === 1024 ? 1024 ** Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024)) : 1;
    const rough = span / unit / Math.max(count, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const factor = [1, 2, 2.5, 5, 10].find((f) => f * power >= rough) || 10;
    const gap = factor * power * unit;
    const ticks = [];
    for (let i = Math.ceil(low / gap - 1e-9); i * gap <= high + gap * 1e-9; i += 1) ticks.push(i * gap);
    return ticks;
  }

  function logTicks(low, high, count) {
    const ticks = [];
    const decades = Math.log10(high / low);
    const factors = decades > 3 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
    const every = Math.max(1, Math.ceil(decades / count));
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      if (decades > 3 && power % every !== 0) continue;
      for (const factor of factors) {
        const tick = factor * 10 ** power;
        if (tick >= low && tick <= high) ticks.push(tick);
      }
    }
    return ticks.length >= 2 ? ticks : niceTicks(low, high, count);
  }

  // The place of the value of the sorted list that is nearest.
  function nearest(list, value) {
    let low = 0;
    let high = list.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] < value) low = middle + 1; else high = middle;
    }
    return low > 0 && value - list[low - 1] <= list[low] - value ? low - 1 : low;
  }

  // An exponential mean that is not drawn to zero at its start; of the buckets' means, where points
  // stand for several steps. A value that is not finite is in neither list.
  function smoothed(series) {
    const xs = series.mean_x || series.x;
    const ys = series.mean_y || series.y;
    let mean = 0;
    let total = 0;
    return {
      x: xs,
      y: ys.map((value) => {
        mean = mean * weight + value * (1 - weight);
        total = total * weight + (1 - weight);
        return mean / total;
      }),
    };
  }

  // ---- drawing ----

  function element(name, attributes, parent) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key of Object.keys(attributes)) made.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(made);
    return made;
  }

  function html(name, className, parent, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  class Chart {
    constructor(spec, index) {
      this.spec = spec;
      this.format = FORMATS[spec.format];
      this.figure = html("figure", index === 0 ? "chart wide" : "chart", host);
      this.figure.id = "chart-" + spec.id;
      const caption = html("figcaption", "", this.figure);
      html("h3", "", caption, spec.title);
      this.readout = html("p", "readout", caption);
      this.plot = html("div", "plot", this.figure);
      this.svg = element("svg", {
        tabindex: "0", role: "slider", "aria-label": spec.title + " over steps",
        "aria-orientation": "horizontal",
      }, this.plot);
      this.tip = html("div", "tip", this.plot);
      this.tip.hidden = true;
      this.addLegend();
      this.steps = spec.series[0].x;
      this.svg.setAttribute("aria-valuemin", String(this.steps[0] ?? 0));
      this.svg.setAttribute("aria-valuemax", String(this.steps[this.steps.length - 1] ?? 0));
      this.listen();
    }

    addLegend() {
      const entries = [];
      if (this.spec.series.length > 1) {
        this.spec.series.forEach((series, i) => entries.push([series.name, "s" + (i % 4)]));
      }
      const lost = this.spec.series.reduce((sum, series) => sum + series.num_not_finite, 0);
      if (lost > 0) entries.push(["▲ " + grouped(lost) + (lost === 1 ? " step" : " steps") + " not finite", ""]);
      if (data.resumes.length > 0 && this.figure === host.firstChild) entries.push(["┊ resumed after step " + data.resumes.map(grouped).join(", "), ""]);
      if (this.spec.reference) entries.push(["╌ " + this.spec.reference.label, ""]);
      if (entries.length === 0) return;
      const list = html("ul", "legend", this.figure);
      for (const [text, style] of entries) {
        const item = html("li", style, list);
        if (style) html("span", "swatch", item);
        item.appendChild(document.createTextNode(text));
      }
    }

    listen() {
      const move = (event) => {
        const box = this.svg.getBoundingClientRect();
        if (this.steps.length > 0) show(this.stepAt(event.clientX - box.left), this);
      };
      this.svg.addEventListener("pointermove", move);
      this.svg.addEventListener("pointerdown", move);
      this.svg.addEventListener("pointerleave", () => { if (document.activeElement !== this.svg) show(null, null); });
      this.svg.addEventListener("blur", () => show(null, null));
      this.svg.addEventListener("focus", () => {
        if (cursor === null && this.svg.matches(":focus-visible")) this.moveTo(this.steps.length - 1);
      });
      this.svg.addEventListener("keydown", (event) => this.onKey(event));
    }

    onKey(event) {
      const last = this.steps.length - 1;
      const at = cursor === null ? last : nearest(this.steps, cursor);
      const page = Math.max(1, Math.round(last / 20));
      const target = {
        ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1,
        PageDown: at - page, PageUp: at + page, Home: 0, End: last,
      }[event.key];
      if (event.key === "Escape") show(null, null);
      if (target === undefined || last < 0) return;
      event.preventDefault();
      this.moveTo(Math.min(last, Math.max(0, target)));
    }

    moveTo(index) {
      if (index >= 0) show(this.steps[index], this);
    }

    // In log scale, what is not above zero has no place.
    visible(value) {
      return !this.log || value > 0;
    }

    range() {
      let low = Infinity;
      let high = -Infinity;
      for (const series of this.spec.series) {
        for (const value of series.y) {
          if (this.visible(value)) {
            low = Math.min(low, value);
            high = Math.max(high, value);
          }
        }
      }
      if (low > high) return this.log ? [0.1, 1] : [0, 1];
      if (this.log) return low === high ? [low / 2, high * 2] : [low / 1.05, high * 1.05];
      if (low === high) return [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
      const pad = (high - low) * 0.06;
      return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
    }

    draw() {
      this.width = Math.max(200, this.plot.clientWidth);
      this.height = this.figure.classList.contains("wide") ? Math.min(340, Math.max(220, this.width * 0.5)) : 210;
      this.log = logScale.checked;
      this.svg.replaceChildren();
      this.svg.setAttribute("viewBox", "0 0 " + this.width + " " + this.height);
      this.svg.setAttribute("height", String(this.height));
      [this.low, this.high] = this.range();
      const ends = this.spec.series.filter((s) => s.x.length > 0).flatMap((s) => [s.x[0], s.x[s.x.length - 1]]);
      const bad = this.spec.series.flatMap((s) => s.not_finite);
      const all = ends.concat(bad);
      this.first = all.length > 0 ? Math.min(...all) : 0;
      this.last = all.length > 0 ? Math.max(...all) : 1;
      if (this.first === this.last) {
        this.first -= 1;
        this.last += 1;
      }
      this.drawAxes();
      this.drawMarks();
      this.spec.series.forEach((series, i) => this.drawSeries(series, i));
      this.hair = element("g", {}, this.svg);
      this.drawCursor(false);
    }

    x(step) {
      const width = this.width - MARGIN.left - MARGIN.right;
      return MARGIN.left + (step - this.first) / (this.last - this.first) * width;
    }

    y(value) {
      const height = this.height - MARGIN.top - MARGIN.bottom;
      const part = this.log
        ? Math.log(value / this.low) / Math.log(this.high / this.low)
        : (value - this.low) / (this.high - this.low);
      return this.height - MARGIN.bottom - part * height;
    }

    stepAt(x) {
      const width = this.width - MARGIN.left - MARGIN.right;
      const step = this.first + (x - MARGIN.left) / width * (this.last - this.first);
      return this.steps[nearest(this.steps, step)];
    }

    drawAxes() {
      const right = this.width - MARGIN.right;
      const bottom = this.height - MARGIN.bottom;
      const ticks = this.log
        ? logTicks(this.low, this.high, this.height / 40)
        : niceTicks(this.low, this.high, this.height / 40, this.spec.format === "bytes" ? 1024 : 10);
      let lastLabel = Infinity;
      for (const tick of ticks) {
        const y = this.y(tick);
        element("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }, this.svg);
        if (lastLabel - y >= 14) {
          const text = element("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, this.svg);
          text.textContent = TICKS[this.spec.format](Number(tick.toPrecision(10)));
          lastLabel = y;
        }
      }
      element("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }, this.svg);
      const steps = niceTicks(this.first, this.last, Math.min(8, this.width / 90)).filter(Number.isInteger);
      for (const step of steps) {
        const text = element("text", { x: this.x(step), y: bottom + 17, "text-anchor": "middle" }, this.svg);
        text.textContent = stepTick(step);
      }
    }

    drawMarks() {
      const bottom = this.height - MARGIN.bottom;
      for (const step of data.resumes) {
        if (step < this.first || step > this.last) continue;
        const x = this.x(step + 0.5);
        element("line", { class: "resume", x1: x, x2: x, y1: MARGIN.top, y2: bottom }, this.svg);
      }
      const reference = this.spec.reference;
      if (reference && this.visible(reference.value) && reference.value >= this.low && reference.value <= this.high) {
        const y = this.y(reference.value);
        element("line", { class: "reference", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y }, this.svg);
      }
      for (const step of this.spec.series.flatMap((s) => s.not_finite)) {
        const x = this.x(step);
        element("path", { class: "not-finite", d: "M" + x + " " + (bottom - 8) + "l4.5 8h-9z" }, this.svg);
      }
    }

    // Broken where a step was not finite, or has no place in the scale.
    path(xs, ys, breaks) {
      let d = "";
      let down = false;
      let next = 0;
      for (let i = 0; i < xs.length; i += 1) {
        while (next < breaks.length && breaks[next] < xs[i]) {
          next += 1;
          down = false;
        }
        if (!this.visible(ys[i])) {
          down = false;
          continue;
        }
        d += (down ? "L" : "M") + this.x(xs[i]).toFixed(1) + " " + this.y(ys[i]).toFixed(1);
        down = true;
      }
      return d;
    }

    drawSeries(series, i) {
      const style = " s" + (i % 4);
      const smooth = weight > 0 && series.x.length > 2;
      const bare = series.x.length === 1;
      element("path", {
        class: "raw" + style + (smooth ? " faint" : ""),
        d: this.path(series.x, series.y, series.not_finite),
      }, this.svg);
      series.smoothed = smooth ? smoothed(series) : null;
      if (smooth) {
        element("path", {
          class: "smooth" + style, d: this.path(series.smoothed.x, series.smoothed.y, series.not_finite),
        }, this.svg);
      }
      if (bare && this.visible(series.y[0])) {
        element("circle", { class: "dot" + style, cx: this.x(series.x[0]), cy: this.y(series.y[0]), r: 4 }, this.svg);
      }
    }

    // What stands at the cursor, or at the end: [series, value, smoothed value, its number].
    values(step) {
      return this.spec.series.flatMap((series, i) => {
        if (series.x.length === 0) return [];
        const at = step === null ? series.x.length - 1 : nearest(series.x, step);
        const smooth = series.smoothed
          ? series.smoothed.y[nearest(series.smoothed.x, series.x[at])]
          : null;
        return [{ name: series.name, step: series.x[at], value: series.y[at], smooth, style: "s" + (i % 4) }];
      });
    }

    drawCursor(active) {
      this.hair.replaceChildren();
      this.tip.hidden = true;
      const values = this.values(cursor);
      this.readout.replaceChildren();
      if (values.length === 0) {
        this.readout.textContent = "no finite value";
        return;
      }
      const where = cursor === null ? values[0].step : cursor;
      const words = values.map((v) => (values.length > 1 ? v.name + " " : "") + this.format(v.value)
        + (v.smooth === null ? "" : ", smoothed " + this.format(v.smooth))).join("; ");
      this.svg.setAttribute("aria-valuenow", String(where));
      this.svg.setAttribute("aria-valuetext", "step " + grouped(where) + ": " + words);
      this.readout.append("step " + grouped(where) + " ");
      html("b", "", this.readout, values.map((v) => this.format(v.value)).join(" · "));
      if (cursor === null) return;
      const x = this.x(values[0].step);
      element("line", { class: "hair", x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom }, this.hair);
      for (const v of values) {
        if (this.visible(v.value)) element("circle", { class: "dot " + v.style, cx: this.x(v.step), cy: this.y(v.value), r: 4 }, this.hair);
      }
      if (active) this.showTip(x, values);
    }

    showTip(x, values) {
      this.tip.replaceChildren();
      html("div", "key", this.tip, "step " + grouped(values[0].step));
      for (const v of values) {
        const row = html("div", v.style, this.tip);
        html("span", "swatch", row);
        if (values.length > 1) html("span", "key", row, v.name + " ");
        row.append(this.format(v.value));
        if (v.smooth !== null) html("div", "key", this.tip, "smoothed " + this.format(v.smooth));
      }
      this.tip.hidden = false;
      // On the side of the crosshair that has room.
      const size = this.tip.offsetWidth;
      const right = x + 12 + size <= this.width;
      this.tip.style.left = Math.max(0, right ? x + 12 : x - 12 - size) + "px";
    }
  }

  const charts = data.charts.map((spec, index) => new Chart(spec, index));

  function show(step, chart) {
    cursor = step;
    for (const each of charts) each.drawCursor(each === chart);
  }

  function drawAll() {
    for (const chart of charts) chart.draw();
  }

  smoothing.addEventListener("input", () => {
    weight = Number(smoothing.value);
    document.getElementById("smoothing-value").textContent = weight.toFixed(2);
    drawAll();
  });
  logScale.addEventListener("change", drawAll);
  let width = 0;
  new ResizeObserver(() => {
    if (host.clientWidth === width) return;
    width = host.clientWidth;
    drawAll();
  }).observe(host);
  drawAll();
  width = host.clientWidth;
})();
