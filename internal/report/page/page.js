"use strict";
// Draws the charts of the page from the data in it. Nothing is loaded.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  if (data.memories.length === 0) return;

  const colours = ["#4a90d9", "#e8a33d", "#2a9d5c", "#c95792", "#7a6bd1", "#46b5c4", "#d3642f", "#8da33b", "#a8623f", "#5470a6", "#d98c8c", "#6c9a8b"];
  const otherColour = "#9aa0a6";
  const css = getComputedStyle(document.body);
  const ink = css.color;
  const soft = css.getPropertyValue("--soft");
  const font = { color: ink, fontFamily: css.fontFamily };

  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  function size(n) {
    let u = 0;
    for (; Math.abs(n) >= 1024 && u < units.length - 1; u++) n /= 1024;
    return (u === 0 ? String(n) : n.toFixed(2)) + " " + units[u];
  }
  // step is a distance of about n ticks up to most that is round in binary units.
  const step = (most, n) => 2 ** Math.max(0, Math.ceil(Math.log2(most / n)));
  function time(s) {
    if (s <= 0) return "0s";
    if (s >= 3600) return Math.floor(s / 3600) + "h" + Math.floor((s % 3600) / 60) + "m";
    if (s >= 60) return Math.floor(s / 60) + "m" + (s % 60).toFixed(s % 60 < 10 && s < 600 ? 1 : 0) + "s";
    return s >= 1 ? +s.toFixed(3) + "s" : +(s * 1000).toFixed(3) + "ms";
  }
  function element(tag, text, style) {
    const e = document.createElement(tag);
    e.textContent = text;
    Object.assign(e.style, style || {});
    return e;
  }

  // A memory's samples: what each site held when the use of the interval was highest.
  let memory = data.memories[0];
  let range = [0, data.seconds];
  const held = (i) => {
    const list = [];
    for (const flat = memory.lists[memory.list[i]] || [], n = flat.length; list.length * 2 < n;) {
      const at = list.length * 2;
      list.push([flat[at], flat[at + 1]]);
    }
    const others = memory.used[i] - list.reduce((sum, [, bytes]) => sum + bytes, 0);
    if (others > 0) list.push([-1, others]);
    return list;
  };
  const endOf = (i) => (i + 1 < memory.times.length ? memory.times[i + 1] : data.seconds);

  // ---- use over time, by call site

  const area = echarts.init($("area"));
  const shown = 12;

  function drawArea() {
    const most = new Map();
    const samples = memory.times.map((_, i) => held(i));
    for (const list of samples) for (const [site, bytes] of list) if (site >= 0) most.set(site, Math.max(most.get(site) || 0, bytes));
    const top = [...most.keys()].sort((a, b) => most.get(b) - most.get(a) || a - b).slice(0, shown);
    const row = new Map(top.map((site, i) => [site, i]));
    const values = [...top, -1].map(() => new Array(memory.times.length).fill(0));
    samples.forEach((list, i) => {
      for (const [site, bytes] of list) values[row.has(site) ? row.get(site) : top.length][i] += bytes;
    });
    const others = values[top.length].some((v) => v > 0);
    const points = (list) => [...list.map((v, i) => [memory.times[i], v]), [data.seconds, list[list.length - 1]]];
    const full = $("axis").value === "capacity" && memory.capacity;
    const fragmented = memory.free && memory.free.some((n) => n !== null);
    const marks = data.failures.filter((r) => r.memory === memory.memory).map((r) => ({ xAxis: r.at, name: r.what }));
    const series = values.slice(0, others ? undefined : top.length).map((list, i) => ({
      name: i < top.length ? data.sites[top[i]].label : "other call sites", type: "line", stack: "held", step: "end", symbol: "none", animation: false,
      data: points(list), lineStyle: { width: 0 }, areaStyle: { opacity: 0.85 }, itemStyle: { color: i < top.length ? colours[i] : otherColour },
      markLine: i > 0 ? undefined : {
        symbol: "none", silent: false, animation: false, label: { formatter: (p) => p.name, color: ink, position: "insideEndTop" },
        data: [...marks.map((m) => ({ ...m, lineStyle: { color: "#d33" } })), ...(full ? [{ yAxis: memory.capacity, name: "capacity", lineStyle: { color: soft } }] : [])],
      },
    }));
    const grids = [{ left: 85, right: 20, top: 15, height: fragmented ? 190 : 265 }];
    const axis = (i, label) => ({
      type: "value", gridIndex: i, min: 0, max: data.seconds, axisLabel: { ...font, show: label, formatter: time, hideOverlap: true }, splitLine: { show: false }, axisPointer: { show: true, snap: false, label: { show: false } },
    });
    // The highest value is labelled; what would be written over it is not.
    const bytes = (i, most) => {
      const interval = step(most, i ? 2 : 6);
      const formatter = (v) => (v < most && v > most - interval * 0.3 ? "" : size(v));
      return { type: "value", gridIndex: i, min: 0, max: most, axisLabel: { ...font, formatter }, interval, splitLine: { lineStyle: { opacity: 0.2 } } };
    };
    const xs = [axis(0, !fragmented)];
    const ys = [bytes(0, full ? memory.capacity : Math.max(1, ...memory.used))];
    if (fragmented) {
      grids.push({ left: 85, right: 20, top: 222, height: 58 });
      xs.push(axis(1, true));
      const lines = [["free per bank", memory.free, "#2a9d5c"], ["largest free block", memory.largest, "#d9822b"]];
      ys.push({
        ...bytes(1, Math.max(1, ...memory.free)), name: lines.map(([name], i) => `{${"ab"[i]}|${name}}`).join("   "), nameGap: 3,
        nameTextStyle: { ...font, align: "left", rich: Object.fromEntries(lines.map(([, , color], i) => ["ab"[i], { ...font, color }])) },
      });
      lines.forEach(([name, list, color]) => series.push({
        name, type: "line", step: "end", symbol: "none", xAxisIndex: 1, yAxisIndex: 1, animation: false, data: points(list), lineStyle: { width: 1.5 }, itemStyle: { color },
      }));
    }
    area.setOption({
      animation: false, textStyle: font, grid: grids, xAxis: xs, yAxis: ys, series,
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      tooltip: { trigger: "axis", confine: true, transitionDuration: 0, backgroundColor: css.getPropertyValue("--panel"), textStyle: font, formatter: hover, extraCssText: "max-width: 90%; white-space: normal" },
      dataZoom: [
        { type: "slider", xAxisIndex: xs.map((_, i) => i), filterMode: "none", startValue: range[0], endValue: range[1], labelFormatter: time, textStyle: font, left: 85, right: 20, bottom: 6, height: 26, brushSelect: true },
        { type: "inside", xAxisIndex: xs.map((_, i) => i), filterMode: "none", startValue: range[0], endValue: range[1], zoomOnMouseWheel: "ctrl" },
      ],
    }, { notMerge: true });
  }

  // at is the sample that a time falls into.
  function at(t) {
    let i = 0;
    while (i + 1 < memory.times.length && memory.times[i + 1] <= t) i++;
    return i;
  }

  function hover(params) {
    const i = at(params[0].axisValue);
    const box = element("div", "");
    box.append(element("b", time(memory.times[i]) + " – " + time(endOf(i)) + ": at most " + size(memory.used[i])));
    const list = params.filter((p) => p.componentType === "series" && p.axisIndex === 0).map((p) => [p.seriesName, p.color, seriesAt(p.seriesIndex, i)]);
    list.sort((a, b) => b[2] - a[2]);
    for (const [name, color, bytes] of list) {
      if (!bytes) continue;
      const row = element("div", "", { display: "flex", gap: ".6em", fontSize: "12px" });
      row.append(element("span", "■", { color }), element("span", size(bytes), { minWidth: "6.5em", textAlign: "right" }), element("span", name, { overflowWrap: "anywhere" }));
      box.append(row);
    }
    if (memory.free && memory.free[i] !== null) box.append(element("div", "per bank " + size(memory.free[i]) + " free, largest free block " + size(memory.largest[i]), { fontSize: "12px" }));
    return box;
  }
  const seriesAt = (s, i) => area.getOption().series[s].data[i][1];

  area.on("dataZoom", () => {
    const z = area.getOption().dataZoom[0];
    range = [z.startValue, z.endValue];
    drawFlame();
  });

  // ---- flame graph

  const flame = echarts.init($("flame"));
  const rowHeight = 19;
  let zoomed = []; // names from the root down

  // peak is the sample of the time range with the highest use.
  function peak() {
    let best = -1;
    memory.times.forEach((t, i) => {
      if (t <= range[1] && (endOf(i) > range[0] || i === memory.times.length - 1) && (best < 0 || memory.used[i] > memory.used[best])) best = i;
    });
    return best;
  }

  // chosen is what the flame graph is of: the bytes of sites, and a title.
  function chosen() {
    const own = (bytes) => data.sites.map((s, i) => [i, s.memory === memory.memory ? bytes(s) : 0]).filter(([, n]) => n > 0);
    const from = time(range[0]) + " – " + time(range[1]);
    switch ($("what").value) {
      case "left": return [own((s) => s.left), $("what").selectedOptions[0].text + ", whole time, all chips"];
      case "allocated": return [own((s) => s.allocated), "allocated, whole time, all chips"];
      case "grown": {
        const before = new Map(held(at(range[0])));
        const after = held(at(range[1]));
        return [after.map(([s, n]) => [s, n - (before.get(s) || 0)]).filter(([, n]) => n > 0), "growth within " + from];
      }
    }
    const i = peak();
    return [i < 0 ? [] : held(i), "highest use within " + from + (i < 0 ? "" : ", at " + time(memory.times[i]))];
  }

  function tree(list) {
    const root = { name: memory.name, bytes: 0, below: new Map() };
    const many = new Set(list.filter(([s]) => s >= 0).map(([s]) => data.sites[s].pid)).size > 1;
    for (const [s, bytes] of list) {
      const site = data.sites[s];
      const calls = s < 0 ? ["other call sites"] : [...(many ? ["process " + site.pid] : []), ...(site.stack.length ? site.stack.map((f) => data.frames[f]) : [site.label])];
      let node = root;
      node.bytes += bytes;
      for (const name of calls) {
        if (!node.below.has(name)) node.below.set(name, { name, bytes: 0, below: new Map() });
        node = node.below.get(name);
        node.bytes += bytes;
      }
    }
    return root;
  }

  function colour(name) {
    let h = 0;
    for (let i = 0; i < name.length; i++) h = (h * 31 + name.charCodeAt(i)) | 0;
    h = Math.abs(h);
    const hue = /\.py:\d+\)$/.test(name) ? 200 + (h % 30) : /^ttnn::/.test(name) ? 90 + (h % 40) : 20 + (h % 35);
    return "hsl(" + hue + ", " + (55 + (h % 17)) + "%, " + (62 + (h % 11)) + "%)";
  }

  function drawFlame() {
    const [list, title] = chosen();
    const root = tree(list);
    let top = root;
    const path = [];
    for (const name of zoomed) {
      const next = top.below.get(name);
      if (!next) break;
      path.push(name);
      top = next;
    }
    zoomed = path;
    const rows = [];
    const above = [root];
    for (const name of zoomed) above.push(above[above.length - 1].below.get(name));
    above.forEach((node, depth) => rows.push({ value: [depth, 0, 1, node.bytes], name: node.name, path: zoomed.slice(0, depth) }));
    let deepest = above.length - 1;
    const add = (node, depth, x, path) => {
      for (const child of [...node.below.values()].sort((a, b) => b.bytes - a.bytes)) {
        const width = child.bytes / top.bytes;
        if (width < 0.0005) break;
        deepest = Math.max(deepest, depth);
        const own = [...path, child.name];
        rows.push({ value: [depth, x, x + width, child.bytes], name: child.name, path: own });
        add(child, depth + 1, x, own);
        x += width;
      }
    };
    if (top.bytes > 0) add(top, above.length, 0, zoomed);
    for (const r of rows) r.itemStyle = { color: colour(r.name) };
    $("range").textContent = size(root.bytes) + " " + title;
    $("flame").style.height = (deepest + 1) * rowHeight + 4 + "px";
    flame.resize();
    flame.setOption({
      animation: false, textStyle: font,
      grid: { left: 0, right: 0, top: 0, bottom: 4 },
      xAxis: { show: false, min: 0, max: 1 }, yAxis: { show: false, inverse: true, min: 0, max: deepest + 1 },
      tooltip: {
        confine: true, transitionDuration: 0, backgroundColor: css.getPropertyValue("--panel"), textStyle: font, extraCssText: "max-width: 90%; white-space: normal; overflow-wrap: anywhere",
        formatter: (p) => {
          const box = element("div", "");
          box.append(element("b", p.name), element("div", size(p.value[3]) + (root.bytes ? ", " + ((100 * p.value[3]) / root.bytes).toFixed(1) + " %" : "")));
          return box;
        },
      },
      series: [{
        type: "custom", data: rows, encode: { x: [1, 2], y: 0 },
        renderItem: (params, api) => {
          const [x0, y] = api.coord([api.value(1), api.value(0)]);
          const [x1] = api.coord([api.value(2), api.value(0)]);
          return {
            type: "rect", shape: { x: x0, y, width: Math.max(x1 - x0 - 1, 0.5), height: rowHeight - 1 }, style: { fill: api.visual("color") }, emphasis: { style: { opacity: 0.8 } },
            textConfig: { position: "insideLeft" },
            textContent: { style: x1 - x0 < 30 ? { text: "" } : { text: rows[params.dataIndex].name, fill: "#111", fontSize: 12, width: x1 - x0 - 8, overflow: "truncate" } },
          };
        },
      }],
    }, { notMerge: true });
  }
  flame.on("click", (p) => {
    zoomed = p.data.path;
    drawFlame();
  });

  // ---- controls

  data.memories.forEach((m, i) => $("memory").add(new Option(m.name, i)));
  $("memory").value = data.first;
  memory = data.memories[data.first];
  $("memory").onchange = () => {
    memory = data.memories[$("memory").value];
    zoomed = [];
    drawArea();
    drawFlame();
  };
  $("axis").onchange = drawArea;
  $("what").onchange = () => {
    zoomed = [];
    drawFlame();
  };
  $("whole").onclick = () => {
    range = [0, data.seconds];
    zoomed = [];
    drawArea();
    drawFlame();
  };
  addEventListener("resize", () => {
    area.resize();
    drawFlame();
  });
  drawArea();
  drawFlame();
  window.charts = { area, flame };
  performance.mark("drawn");
  document.body.dataset.drawn = "yes";
})();
