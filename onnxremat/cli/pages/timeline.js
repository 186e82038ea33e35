"use strict";
// Draws the steps of an audit. What it needs is in the element "data": see payload.py.
(async () => {
  const LAYERS = 12,
    HEIGHT = 380,
    LISTED = 6,
    COLUMNS = 1600,
    UNITS = [
      [1e9, "GB"],
      [1e6, "MB"],
      [1e3, "kB"],
    ];
  const $ = (id) => document.getElementById(id);
  const make = (tag, text, parent) => {
    const one = document.createElement(tag);
    if (text !== undefined) one.textContent = text;
    if (parent) parent.append(one);
    return one;
  };

  async function decoded(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function size(n) {
    for (const [scale, unit] of UNITS) {
      if (n >= scale * 0.99995) {
        const value = n / scale;
        return (value < 100 ? value.toFixed(2) : value.toFixed(1)) + " " + unit;
      }
    }
    return n + " B";
  }

  function duration(ns) {
    return ns < 1e6
      ? (ns / 1e3).toFixed(0) + " µs"
      : ns < 1e9
        ? (ns / 1e6).toFixed(1) + " ms"
        : (ns / 1e9).toFixed(2) + " s";
  }

  const colour = (name) =>
    getComputedStyle(document.documentElement)
      .getPropertyValue("--" + name)
      .trim();

  let data;
  try {
    data = await decoded($("data").textContent);
  } catch (error) {
    make("p", "This browser cannot draw the picture: " + error.message, $("plot"));
    return;
  }
  const names = data.names;
  const SESSION_WORDS = {
    "default options": "default options",
    "as written": "recipe (nodes as written)",
  };
  const state = {
    model: 0,
    session: "",
    by: "tensor",
    weights: false,
    inputs: false,
    low: 0,
    high: 1,
  };
  let plot = null,
    view = null,
    shownStep = -1,
    chosen = false;

  // --- What is drawn ---------------------------------------------------------------------------

  // Bytes of each layer in each step, the bottom one first: what is there all the time, values,
  // and the workspace of kernels on top.
  function layered(session, by) {
    if (!session.cache) session.cache = {};
    if (session.cache[by]) return session.cache[by];
    const n = session.steps.name.length,
      stack = session.stacks[by];
    const layers = stack.labels.map((label, i) => ({
      label,
      bytes: new Float64Array(n + 1),
      colour: stack.others && i === stack.labels.length - 1 ? "others" : "c" + (i % LAYERS),
    }));
    const { bytes, start, end } = session.values;
    for (let i = 0; i < bytes.length; i++) {
      const layer = layers[stack.layer[i]].bytes;
      layer[start[i]] += bytes[i];
      layer[end[i]] -= bytes[i];
    }
    for (const layer of layers) {
      let held = 0;
      for (let i = 0; i < n; i++) {
        held += layer.bytes[i];
        layer.bytes[i] = held;
      }
      layer.bytes = layer.bytes.subarray(0, n);
    }
    layers.push({
      label: "workspace of kernels",
      bytes: Float64Array.from(session.steps.work),
      colour: "work",
    });
    return (session.cache[by] = layers);
  }

  function totals(session) {
    if (!session.total) {
      const n = session.steps.name.length;
      session.total = new Float64Array(n);
      for (const layer of layered(session, "tensor"))
        for (let i = 0; i < n; i++) session.total[i] += layer.bytes[i];
    }
    return session.total;
  }

  // The steps that are drawn: all, or of each column of pixels the one that holds most.
  function sampled(total, low, high) {
    const columns = Math.max(200, Math.min(COLUMNS, Math.round(width() * 1.5)));
    const chosen = [];
    if (high - low <= columns) {
      for (let i = low; i < high; i++) chosen.push(i);
      return chosen;
    }
    for (let c = 0; c < columns; c++) {
      const from = low + Math.floor(((high - low) * c) / columns),
        to = low + Math.floor(((high - low) * (c + 1)) / columns);
      let best = from;
      for (let i = from + 1; i < to; i++) if (total[i] > total[best]) best = i;
      chosen.push(best);
    }
    return chosen;
  }

  const model = () => data.models[Math.max(0, state.model)];
  const both = () => state.model < 0;
  const width = () => Math.max(240, $("plot").clientWidth);
  const sessionOf = (one) => one.sessions.find((s) => s.session === state.session);

  function axes(bottom) {
    const line = {
      stroke: colour("soft"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { stroke: colour("line"), width: 1 },
      font: "12px sans-serif",
    };
    const narrow = width() < 520;
    return [
      { ...line, ...bottom, size: 34, space: narrow ? 60 : 80 },
      { ...line, size: 74, values: (u, ticks) => ticks.map(size) },
    ];
  }

  function base(kind, series, data_, bottom, range, hooks) {
    return new uPlot(
      {
        width: width(),
        height: HEIGHT,
        series,
        axes: axes(bottom),
        legend: { show: false },
        scales: {
          x: { time: false, range },
          y: { range: (u, low, high) => [0, Math.max(1, high * 1.08)] },
        },
        cursor: {
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => null },
        },
        hooks,
        padding: [14, 22, 0, 0],
      },
      data_,
      $("plot"),
    );
  }

  function mark(u, x, y, text, name) {
    const context = u.ctx,
      ratio = uPlot.pxRatio;
    const left = u.valToPos(x, "x", true),
      top = u.valToPos(y, "y", true);
    const box = u.bbox;
    if (left < box.left - 1 || left > box.left + box.width + 1) return;
    context.save();
    context.strokeStyle = context.fillStyle = colour(name);
    context.lineWidth = 1.5 * ratio;
    context.setLineDash([5 * ratio, 4 * ratio]);
    context.beginPath();
    context.moveTo(left, box.top);
    context.lineTo(left, box.top + box.height);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.arc(left, top, 4 * ratio, 0, 2 * Math.PI);
    context.fill();
    label(u, left + 8 * ratio, Math.max(box.top + 14 * ratio, top - 8 * ratio), text, left);
    context.restore();
  }

  // A text beside a place, to the left of it where there is no room to the right.
  function label(u, x, y, text, left) {
    const context = u.ctx,
      ratio = uPlot.pxRatio,
      box = u.bbox;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.font = `600 ${12 * ratio}px sans-serif`;
    const wide = context.measureText(text).width,
      edge = box.left + box.width;
    let from = x + wide > edge ? left - wide - 8 * ratio : x;
    from = Math.max(box.left + 2 * ratio, from);
    context.save();
    context.globalAlpha = 0.8;
    context.fillStyle = colour("page");
    context.fillRect(from - 3 * ratio, y - 12 * ratio, wide + 6 * ratio, 16 * ratio);
    context.restore();
    context.fillText(text, from, y);
  }

  function level(u, y, text, name) {
    const context = u.ctx,
      ratio = uPlot.pxRatio,
      box = u.bbox,
      at = u.valToPos(y, "y", true);
    if (at < box.top) return;
    context.save();
    context.strokeStyle = context.fillStyle = colour(name);
    context.lineWidth = 1.5 * ratio;
    context.setLineDash([2 * ratio, 3 * ratio]);
    context.beginPath();
    context.moveTo(box.left, at);
    context.lineTo(box.left + box.width, at);
    context.stroke();
    label(u, box.left + 6 * ratio, at - 4 * ratio, text, box.left);
    context.restore();
  }

  function drawStack() {
    const session = view.session,
      n = session.steps.name.length,
      layers = view.layers;
    const chosen = sampled(totals(session), state.low, state.high);
    const xs = chosen.map((i) => i).concat(state.high);
    const columns = [],
      sums = new Float64Array(chosen.length);
    for (const layer of layers) {
      for (let k = 0; k < chosen.length; k++) sums[k] += layer.fixed ?? layer.bytes[chosen[k]];
      columns.push(Array.from(sums).concat(sums[sums.length - 1]));
    }
    view.chosen = chosen;
    const stepped = uPlot.paths.stepped({ align: 1 });
    const series = [{}],
      values = [xs];
    const edge = chosen.length < 400 ? colour("page") : null;
    for (let i = layers.length - 1; i >= 0; i--) {
      series.push({
        label: layers[i].label,
        fill: colour(layers[i].colour),
        stroke: edge ?? colour(layers[i].colour),
        width: edge ? 0.6 : 0,
        paths: stepped,
        points: { show: false },
      });
      values.push(columns[i]);
    }
    const fixed = layers.reduce((sum, layer) => sum + (layer.fixed ?? 0), 0);
    plot = base(
      "stack",
      series,
      values,
      { values: (u, ticks) => ticks.map((t) => (Number.isInteger(t) && t < n ? t + 1 : "")) },
      () => [state.low, state.high],
      {
        draw: [
          (u) => {
            if (session.bound)
              level(
                u,
                fixed + session.bound,
                "no schedule of whole nodes goes below " + size(fixed + session.bound),
                "strong",
              );
            if (data.limit && session.session === "as written")
              level(u, fixed + data.limit, "limit " + size(fixed + data.limit), "warn");
            mark(
              u,
              session.peakStep + 0.5,
              fixed + session.peak,
              "peak " + size(fixed + session.peak),
              "warn",
            );
          },
        ],
        setCursor: [
          (u) => {
            if (u.cursor.left >= 0 && u.cursor.idx !== null) show(stepAt(u));
          },
        ],
        setSelect: [
          (u) => {
            if (u.select.width < 4) return;
            zoom(
              Math.floor(u.posToVal(u.select.left, "x")),
              Math.ceil(u.posToVal(u.select.left + u.select.width, "x")),
            );
          },
        ],
      },
    );
    plot.over.addEventListener("dblclick", () => zoom(0, n));
    $("whole").hidden = state.low === 0 && state.high === n;
  }

  // The step that is drawn under the cursor.
  function stepAt(u) {
    const at = u.posToVal(u.cursor.left, "x"),
      chosen = view.chosen;
    let low = 0,
      high = chosen.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (chosen[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return chosen[low];
  }

  function drawBoth() {
    const sessions = data.models.map(sessionOf).filter(Boolean);
    const lines = sessions.map((session) => {
      const total = totals(session),
        n = total.length,
        chosen = sampled(total, 0, n),
        ns = session.steps.ns;
      const whole = ns.reduce((a, b) => a + b, 0) || 1,
        began = new Float64Array(n + 1);
      for (let i = 0; i < n; i++) began[i + 1] = began[i] + ns[i] / whole;
      return {
        session,
        chosen,
        xs: chosen.map((i) => 100 * began[i]),
        ys: chosen.map((i) => total[i]),
        peakAt: 100 * began[session.peakStep],
      };
    });
    const xs = [...new Set(lines.flatMap((line) => line.xs).concat(100))].sort((a, b) => a - b);
    const values = [xs],
      series = [{}],
      colours = ["c0", "c1"];
    lines.forEach((line, number) => {
      let k = 0;
      values.push(
        xs.map((x) => {
          while (k + 1 < line.xs.length && line.xs[k + 1] <= x) k++;
          return line.ys[k];
        }),
      );
      const one = colour(colours[number]);
      series.push({
        label: line.session.session,
        stroke: one,
        fill: one + "30",
        width: 1.8,
        paths: uPlot.paths.stepped({ align: 1 }),
        points: { show: false },
      });
    });
    view = { lines };
    plot = base(
      "both",
      series,
      values,
      { values: (u, ticks) => ticks.map((t) => t + "%") },
      () => [0, 100],
      {
        draw: [
          (u) =>
            lines.forEach((line, i) =>
              mark(
                u,
                line.peakAt,
                line.session.peak,
                "peak " + size(line.session.peak),
                colours[i],
              ),
            ),
        ],
        setCursor: [
          (u) => {
            if (u.cursor.left >= 0) showBoth(u.posToVal(u.cursor.left, "x"));
          },
        ],
      },
    );
    showBoth(null);
    const legend = $("legend");
    legend.replaceChildren();
    lines.forEach((line, i) =>
      entry(legend, colours[i], fileOf(line.session) + ", peak " + size(line.session.peak)),
    );
    entry(legend, null, "to the right: share of the time of a run");
    $("whole").hidden = true;
  }

  const fileOf = (session) => data.models.find((one) => one.sessions.includes(session)).file;

  // --- What is told of a step ------------------------------------------------------------------

  function item(list, text, bytes, name) {
    const one = make("li", undefined, list),
      left = make("span", undefined, one);
    if (name) {
      make("i", undefined, left).style.background = "var(--" + name + ")";
      left.className = "keyed";
    }
    make("span", text, left);
    make("b", size(bytes), one);
  }

  function listed(parent, title, items) {
    if (!items.length) return;
    make("h4", title, parent);
    const list = make("ul", undefined, parent);
    for (const [text, bytes, name] of items.slice(0, LISTED)) item(list, text, bytes, name);
    const rest = items.slice(LISTED);
    if (rest.length)
      item(
        list,
        "and " + rest.length + " more",
        rest.reduce((sum, one) => sum + one[1], 0),
      );
  }

  function told(parent, session, step, layers) {
    const { steps, values } = session,
      total = totals(session)[step];
    make("h3", names[steps.name[step]], parent);
    make(
      "div",
      `${names[steps.op[step]]}, step ${step + 1} of ${steps.name.length}, ${duration(steps.ns[step])}${session.measured ? "" : " (estimated)"}`,
      parent,
    ).className = "soft";
    const sum = make("ul", undefined, parent);
    item(sum, "held in this step" + (step === session.peakStep ? " (the peak)" : ""), total);
    if (steps.work[step]) item(sum, "of that workspace of the kernel", steps.work[step]);
    const value = (i) => [`${names[values.name[i]]} ${names[values.type[i]]}`, values.bytes[i]];
    listed(parent, "makes", steps.makes[step].map(value));
    listed(parent, "reads", steps.reads[step].map(value));
    if (layers) {
      const held = layers
        .filter((layer) => layer.bytes && layer.bytes[step] > 0 && layer.colour !== "work")
        .map((layer) => [layer.label, layer.bytes[step], layer.colour]);
      held.sort((a, b) => b[1] - a[1]);
      listed(parent, "held, by " + state.by, held);
    }
  }

  function show(step, force) {
    if (step === shownStep && !force) return;
    shownStep = step;
    const detail = $("detail");
    detail.replaceChildren();
    told(detail, view.session, step, view.layers);
  }

  function showBoth(x) {
    const detail = $("detail");
    detail.replaceChildren();
    for (const line of view.lines) {
      let k = 0;
      while (k + 1 < line.xs.length && line.xs[k + 1] <= x) k++;
      make("h4", fileOf(line.session), detail);
      told(detail, line.session, x === null ? line.session.peakStep : line.chosen[k]);
    }
  }

  function entry(legend, name, text) {
    const one = make("li", undefined, legend);
    if (name) make("i", undefined, one).style.background = "var(--" + name + ")";
    make("span", text, one);
  }

  // --- What is chosen --------------------------------------------------------------------------

  function draw() {
    const began = performance.now();
    if (plot) plot.destroy();
    for (const one of document.querySelectorAll("section[data-session]")) {
      one.hidden =
        one.dataset.session !== state.session || (!both() && +one.dataset.model !== state.model);
    }
    for (const id of ["by", "weights", "inputs"]) $(id).parentElement.hidden = both();
    if (both()) drawBoth();
    else {
      const session = sessionOf(model());
      const fixed = [
        ["weights", session.weights],
        ["inputs", session.inputs],
      ]
        .filter(([id]) => state[id])
        .map(([id, bytes]) => ({ label: id, fixed: bytes, colour: id }));
      view = { session, layers: [...fixed, ...layered(session, state.by)] };
      drawStack();
      const legend = $("legend");
      legend.replaceChildren();
      for (const layer of view.layers)
        entry(legend, layer.colour, layer.label + (layer.fixed ? " " + size(layer.fixed) : ""));
      show(Math.min(Math.max(shownStep, 0), session.steps.name.length - 1), true);
    }
    document.documentElement.dataset.drawn = (performance.now() - began).toFixed(0);
    document.documentElement.dataset.ready ??= performance.now().toFixed(0);
  }

  function zoom(low, high) {
    const n = view.session.steps.name.length;
    const span = Math.max(Math.min(8, n), Math.min(n, high - low));
    state.low = Math.max(0, Math.min(low, n - span));
    state.high = state.low + span;
    draw();
  }

  function whole() {
    const session = sessionOf(model());
    state.low = 0;
    state.high = session.steps.name.length;
    shownStep = session.peakStep;
  }

  function filled(select, options) {
    select.replaceChildren();
    for (const [value, text] of options) make("option", text, select).value = value;
  }

  function sessions() {
    const there = both()
      ? data.models[0].sessions.filter((s) =>
          data.models.every((m) => m.sessions.some((o) => o.session === s.session)),
        )
      : model().sessions;
    filled(
      $("session"),
      there.map((s) => [s.session, SESSION_WORDS[s.session] ?? s.session]),
    );
    if (!there.some((s) => s.session === state.session))
      state.session = there.length ? there[0].session : "";
    $("session").value = state.session;
    return there.length > 0;
  }

  // Tensors by themselves, unless nearly all of the peak would be "others".
  function stacking(session) {
    const others = layered(session, "tensor").find((layer) => layer.colour === "others");
    if (!others || others.bytes[session.peakStep] < 0.6 * session.peak) return "tensor";
    return session.stacks.scope.labels.length > 2 ? "scope" : "op type";
  }

  function restart() {
    if (!sessions()) {
      if (plot) plot.destroy();
      plot = null;
      $("plot").replaceChildren("No session of both could be looked into.");
      return;
    }
    if (!both()) {
      whole();
      if (!chosen) state.by = $("by").value = stacking(sessionOf(model()));
    }
    draw();
  }

  function moved(event) {
    if (both() || !view) return;
    const n = view.session.steps.name.length,
      far = event.shiftKey ? 10 : 1;
    const to = {
      ArrowLeft: shownStep - far,
      ArrowRight: shownStep + far,
      Home: 0,
      End: n - 1,
      p: view.session.peakStep,
    }[event.key];
    const span = state.high - state.low,
      middle = shownStep;
    if (event.key === "+") zoom(middle - Math.floor(span / 4), middle + Math.ceil(span / 4));
    else if (event.key === "-") zoom(middle - span, middle + span);
    else if (event.key === "Escape") zoom(0, n);
    else if (to === undefined) return;
    else {
      const step = Math.max(0, Math.min(n - 1, to));
      if (step < state.low || step >= state.high)
        zoom(step - Math.floor(span / 2), step + Math.ceil(span / 2));
      plot.setCursor({ left: plot.valToPos(step + 0.5, "x"), top: 10 }, false);
      show(step);
    }
    event.preventDefault();
  }

  if ($("model")) {
    filled($("model"), [
      [-1, "both in one picture"],
      ...data.models.map((one, i) => [i, one.file]),
    ]);
    state.model = -1;
    $("model").addEventListener("change", (event) => {
      state.model = +event.target.value;
      restart();
    });
  }
  $("session").addEventListener("change", (event) => {
    state.session = event.target.value;
    restart();
  });
  $("by").addEventListener("change", (event) => {
    state.by = event.target.value;
    chosen = true;
    draw();
  });
  for (const id of ["weights", "inputs"])
    $(id).addEventListener("change", (event) => {
      state[id] = event.target.checked;
      draw();
    });
  $("whole").addEventListener("click", () => zoom(0, view.session.steps.name.length));
  $("plot").addEventListener("keydown", moved);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let last = width(),
    waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (width() !== last) {
        last = width();
        draw();
      }
    }, 120);
  });
  restart();
})();
