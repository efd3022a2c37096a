// The privacy-utility plane: what leaks least stands on the left, what costs least on top.
"use strict";

(function (site) {
  const place = site.at("plane");
  const MARGIN = 0.06;
  const { title, unit, scale, direction } = site.board.columns.find((c) => c.key === "accuracy");
  const better = direction === "higher" ? 1 : -1;

  /** Rows of a section that have both numbers. */
  function points(section, shown, state) {
    return section.rows.filter((i) => shown.includes(i)).map((i) => {
      const row = site.board.rows[i];
      return { i, row, auc: site.value(row, "worst", state), accuracy: row.accuracy };
    }).filter((p) => p.auc && p.accuracy);
  }

  const ends = ([mean, low, high]) => [low ?? mean, high ?? mean];

  function span(intervals, factor, also) {
    const all = [...intervals.flatMap((i) => ends(i)), ...also].map((v) => v * factor);
    const [least, most] = [Math.min(...all), Math.max(...all)];
    const margin = MARGIN * (most - least || 1);
    return new Bokeh.Range1d({ start: least - margin, end: most + margin });
  }

  /** The staircase of what no other shown row beats in both numbers; floors are left out. */
  function front(figure, found) {
    const best = [];
    for (const p of found.filter((one) => !one.row.floor).sort((a, b) => a.auc[0] - b.auc[0] || better * (b.accuracy[0] - a.accuracy[0]))) {
      if (!best.length || better * (p.accuracy[0] - best.at(-1).accuracy[0]) > 0) best.push(p);
    }
    if (best.length > 1) figure.step({ x: best.map((p) => p.auc[0]), y: best.map((p) => scale * p.accuracy[0]), mode: "after", line_color: site.colour("--muted"), line_dash: [5, 4], line_width: 1.5 });
  }

  function whiskers(figure, found, colours) {
    const [low, high] = [(i) => ends(i)[0], (i) => ends(i)[1]];
    const style = { line_color: colours, line_width: 1.4, line_alpha: 0.75 };
    const y = found.map((p) => scale * p.accuracy[0]);
    const x = found.map((p) => p.auc[0]);
    figure.segment({ x0: found.map((p) => low(p.auc)), x1: found.map((p) => high(p.auc)), y0: y, y1: y, ...style });
    figure.segment({ y0: found.map((p) => scale * low(p.accuracy)), y1: found.map((p) => scale * high(p.accuracy)), x0: x, x1: x, ...style });
  }

  function dots(figure, found, looks, colours, focus) {
    const source = new Bokeh.ColumnDataSource({ data: {
      x: found.map((p) => p.auc[0]), y: found.map((p) => scale * p.accuracy[0]), marker: found.map((p) => looks.get(p.i).marker), colour: colours,
      fill: colours.map((c, n) => (looks.get(found[n].i).hollow ? site.colour("--bg") : c)), size: found.map((p) => (p.i === focus ? 18 : 12)),
      defense: found.map((p) => site.short(p.row.label, 60)), auc: found.map((p) => site.said("worst", p.auc)), accuracy: found.map((p) => site.said("accuracy", p.accuracy)),
      delta: found.map((p) => site.said("delta", p.row.delta)), tf01: found.map((p) => site.said("tf01", p.row.tf01)),
    } });
    const made = figure.scatter({ x: { field: "x" }, y: { field: "y" }, marker: { field: "marker" }, size: { field: "size" }, line_color: { field: "colour" }, fill_color: { field: "fill" }, line_width: 1.6, source });
    site.hover(figure, [made], [["defense", "defense"], ["AUC", "auc"], [title, "accuracy"], ["against undefended", "delta"], ["worst TF01", "tf01"]]);
  }

  const EMPTY = { x: [], y: [], text: [], dx: [], dy: [], align: [] };
  const SEATS = [[10, -7, "left"], [10, 7, "left"], [-10, -7, "right"], [-10, 7, "right"], [0, -15, "center"], [0, 15, "center"]];
  const LETTER = 6.6;  // pixels, about

  function names(figure) {
    const source = new Bokeh.ColumnDataSource({ data: EMPTY });
    const at = Object.fromEntries(["x", "y", "text"].map((name) => [name, { field: name }]));
    figure.text({ ...at, x_offset: { field: "dx" }, y_offset: { field: "dy" }, text_align: { field: "align" }, text_baseline: "middle", text_font_size: "12px", text_color: site.colour("--fg"), source });
    return source;
  }

  const apart = (a, b) => a.x >= b.x + b.w || b.x >= a.x + a.w || a.y >= b.y + b.h || b.y >= a.y + a.h;

  /** Names beside the points, where they fit: each in the first free seat, from the most private on; the pointer tells the others. */
  function seat(source, view, found) {
    const { frame } = view;
    const { left, top, width, height } = frame.bbox;
    const spots = found.map((p) => ({ p, x: frame.x_scale.compute(p.auc[0]), y: frame.y_scale.compute(scale * p.accuracy[0]) }));
    const taken = spots.map(({ x, y }) => ({ x: x - 8, y: y - 8, w: 16, h: 16 }));
    const data = structuredClone(EMPTY);
    for (const { p, x, y } of [...spots].sort((a, b) => a.x - b.x)) {
      const text = site.short(p.row.label, 22);
      const w = LETTER * text.length + 4;
      for (const [dx, dy, align] of SEATS) {
        const box = { x: x + dx - (align === "right" ? w : align === "center" ? w / 2 : 0), y: y + dy - 7, w, h: 14 };
        const inside = box.x >= left && box.x + w <= left + width && box.y >= top && box.y + 14 <= top + height;
        if (!inside || !taken.every((other) => apart(box, other))) continue;
        taken.push(box);
        for (const [name, value] of Object.entries({ x: p.auc[0], y: scale * p.accuracy[0], text, dx, dy, align })) data[name].push(value);
        break;
      }
    }
    source.data = data;
  }

  /** The plane of one section; nothing where no row has both numbers. */
  site.showPlane = async (section, shown, state, focus) => {
    const found = section ? points(section, shown, state) : [];
    site.showPlaneTable(found);
    if (!found.length) { site.undraw(place, "No row that is shown has both a leak and an accuracy."); return; }
    const competing = found.filter((p) => !p.row.floor);  // a floor may learn nothing: it would press the others together
    const framed = competing.length ? competing : found;
    const looks = site.looks(section);
    const colours = found.map((p) => site.colour(looks.get(p.i).property));
    const what = state.attack ? `AUC of ${site.short(state.attack)}` : "worst-case AUC";
    const xRange = span(framed.map((p) => p.auc), 1, [0.5, ...found.map((p) => p.auc[0])]);
    const yRange = span(framed.map((p) => p.accuracy), scale, []);
    const figure = site.figure({
      x: `${what} (left: more private)`, y: `test ${title}, ${unit} (${better > 0 ? "up" : "down"}: more useful)`, xRange, yRange, label: `Privacy against utility of ${found.length} defenses; the same numbers stand in the table below it`,
    });
    site.rule(figure, "height", 0.5, "dotted");
    front(figure, found);
    whiskers(figure, found, colours);
    dots(figure, found, looks, colours, focus);
    const labels = names(figure);
    const view = await site.draw(place, figure, { zooms: true });
    if (!view) return;
    const inside = (p) => p.auc[0] >= xRange.start && p.auc[0] <= xRange.end && scale * p.accuracy[0] >= yRange.start && scale * p.accuracy[0] <= yRange.end;
    seat(labels, view, found.filter(inside));
    const outside = found.filter((p) => !inside(p)).map((p) => p.row.label);
    if (outside.length) place.append(site.el("p", { class: "hint" }, "Outside of the frame, zoom out to see: ", outside.map((label, n) => [n ? ", " : "", site.name(label)])));
  };

  site.showPlaneTable = (found) => site.at("plane-table").replaceChildren(site.numbers("Privacy against utility", ["defense", "AUC", title],
    found.map((p) => [p.row.label, site.said("worst", p.auc), site.said("accuracy", p.accuracy)])));
})(window.fedbenchSite);
