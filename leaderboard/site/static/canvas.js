// A figure of Bokeh in the page's colours, put into its place.
"use strict";

(function (site) {
  const drawn = new Map();  // id of the place -> its view
  const turns = new Map();  // id of the place -> how often it was drawn: a later drawing overtakes an earlier one

  /** Ticks at powers of ten and, over few of them, between: Bokeh's own leave a range of one decade and a half without any. */
  function decades(axis, least) {
    const within = Math.log10(least) > -2.2 ? [1, 2, 5] : [1];
    const ticks = [-4, -3, -2, -1, 0].flatMap((power) => within.map((n) => Number(`${n}e${power}`))).filter((tick) => tick <= 1);
    axis.ticker = new Bokeh.FixedTicker({ ticks });
    axis.major_label_overrides = new Map(ticks.map((tick) => [tick, String(tick)]));
  }

  /** An empty figure with these titles of its axes and ranges (null: of the data); log: both axes. */
  site.figure = ({ x, y, xRange = new Bokeh.DataRange1d(), yRange = new Bokeh.DataRange1d(), log = false, height = 380, label }) => {
    const [text, line, grid] = [site.colour("--fg"), site.colour("--muted"), site.colour("--line")];
    const kind = log ? "log" : "linear";
    const made = new Bokeh.Plotting.figure({
      height, sizing_mode: "stretch_width", x_axis_type: kind, y_axis_type: kind, x_range: xRange, y_range: yRange,
      tools: "box_zoom", toolbar_location: null, background_fill_color: null, border_fill_color: null, outline_line_color: line, min_border_right: 12,
    });
    made.toolbar.active_drag = null;  // a page must scroll under a finger: whoever drags asks for it
    for (const [axis, title] of [[made.xaxis, x], [made.yaxis, y]]) {
      Object.assign(axis, {
        axis_label: title, axis_label_text_color: text, major_label_text_color: text, axis_line_color: line, major_tick_line_color: line,
        minor_tick_line_color: null, axis_label_text_font_style: "normal", axis_label_text_font_size: "13px", major_label_text_font_size: "12px",
      });
    }
    for (const one of [made.xgrid, made.ygrid]) one.grid_line_color = grid;
    if (log) for (const axis of [made.xaxis, made.yaxis]) decades(axis, xRange.start);
    made.name = label;
    return made;
  };

  /** Tooltips over these renderers: [[title, column], ...]; values are shown as text. */
  site.hover = (figure, renderers, lines) => figure.add_tools(new Bokeh.HoverTool({
    tooltips: lines.map(([title, column]) => [title, `@${column}`]), renderers, attachment: "horizontal",
  }));

  /** A vertical or horizontal line from end to end. */
  site.rule = (figure, dimension, location, dash) => figure.add_layout(new Bokeh.Span({
    dimension, location, line_color: site.colour("--muted"), line_dash: dash, line_width: 1, level: "underlay",
  }));

  // Bokeh's own toolbar cannot be used from a keyboard; these are buttons.
  const SCALES = { linear: [(v) => v, (v) => v], log: [Math.log10, (v) => 10 ** v] };

  function zoom(range, scale, factor) {
    const [there, back] = SCALES[scale];
    const [start, end] = [there(range.start), there(range.end)];
    const [middle, half] = [(start + end) / 2, (factor * (end - start)) / 2];
    Object.assign(range, { start: back(middle - half), end: back(middle + half) });
  }

  function tools(figure, log) {
    const ranges = [figure.x_range, figure.y_range];
    const kind = log ? "log" : "linear";
    const before = ranges.map((r) => [r.start, r.end]);
    const drag = figure.toolbar.tools.find((tool) => tool instanceof Bokeh.BoxZoomTool);
    const button = (text, label, onclick) => site.el("button", { type: "button", "aria-label": label, title: label, onclick }, text);
    const dragging = button("Zoom by dragging", "Zoom by dragging", () => {
      drag.active = !drag.active;
      dragging.setAttribute("aria-pressed", String(drag.active));
    });
    dragging.setAttribute("aria-pressed", "false");
    return site.el("div", { class: "tools" },
      button("+", "Zoom in", () => ranges.forEach((r) => zoom(r, kind, 0.7))), button("\u2212", "Zoom out", () => ranges.forEach((r) => zoom(r, kind, 1 / 0.7))),
      dragging, button("Reset", "Reset the view", () => ranges.forEach((r, n) => Object.assign(r, { start: before[n][0], end: before[n][1] }))));
  }

  function forget(id) {
    const view = drawn.get(id);
    drawn.delete(id);
    if (view) release(view);
  }

  /** Bokeh keeps every document it ever showed: without this each change of a filter would leave two behind. */
  function release(view) {
    const { document: held } = view.model;
    view.remove();
    if (held) { held.clear(); Bokeh.documents.splice(Bokeh.documents.indexOf(held), 1); }
  }

  /** Draws it where the last one was; resolves to its view, to null where another one came meanwhile. */
  site.draw = async (place, figure, { log = false, zooms = false } = {}) => {
    const turn = (turns.get(place.id) || 0) + 1;
    turns.set(place.id, turn);
    forget(place.id);
    place.replaceChildren();
    place.dataset.drawn = site.isDark() ? "dark" : "light";
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", figure.name);
    const view = await Bokeh.Plotting.show(figure, place);
    if (turns.get(place.id) !== turn) { release(view); return null; }
    drawn.set(place.id, view);
    view.canvas_view.events_el.tabIndex = -1;  // nothing in the drawing answers a key
    if (zooms) place.prepend(tools(figure, log));
    return view;
  };

  /** Takes a figure away, and says why there is none. */
  site.undraw = (place, why) => {
    turns.set(place.id, (turns.get(place.id) || 0) + 1);
    forget(place.id);
    place.replaceChildren(why ? site.el("p", { class: "nothing" }, why) : "");
  };

  /** The view that stands there; for what is added to it once its size is known. */
  site.viewAt = (id) => drawn.get(id);

  /** The dash of a look in the words of Bokeh. */
  site.dash = (look) => (look.dash ? look.dash.split(" ").map(Number) : "solid");
})(window.fedbenchSite);
