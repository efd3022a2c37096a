// A figure of Bokeh in the page's colours, put into its place.
"use strict";

(function (site) {
  const drawn = new Map();  // id of the place -> its view
  const turns = new Map();  // id of the place -> how often it was drawn: a later drawing overtakes an earlier one

  /** An empty figure. axes: {x, y} titles; log: both axes; at most one drag tool, and none until it is chosen: a page must scroll. */
  site.figure = ({ x, y, xRange, yRange, log = false, height = 380, label }) => {
    const [text, line, grid] = [site.colour("--fg"), site.colour("--muted"), site.colour("--line")];
    const kind = log ? "log" : "linear";
    const made = new Bokeh.Plotting.figure({
      height, sizing_mode: "stretch_width", x_axis_type: kind, y_axis_type: kind, x_range: xRange, y_range: yRange,
      tools: "pan,box_zoom,wheel_zoom,reset,save", toolbar_location: "above", background_fill_color: null, border_fill_color: null,
      outline_line_color: line, min_border_right: 12,
    });
    made.toolbar.logo = null;
    for (const gesture of ["active_drag", "active_scroll", "active_tap"]) made.toolbar[gesture] = null;
    for (const [axis, title] of [[made.xaxis, x], [made.yaxis, y]]) {
      Object.assign(axis, {
        axis_label: title, axis_label_text_color: text, major_label_text_color: text, axis_line_color: line, major_tick_line_color: line,
        minor_tick_line_color: null, axis_label_text_font_style: "normal", axis_label_text_font_size: "13px", major_label_text_font_size: "12px",
      });
    }
    for (const one of [made.xgrid, made.ygrid]) one.grid_line_color = grid;
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

  function forget(id) {
    const view = drawn.get(id);
    drawn.delete(id);
    if (!view) return;
    const { document: held } = view.model;
    view.remove();
    if (held) { held.clear(); Bokeh.documents.splice(Bokeh.documents.indexOf(held), 1); }
  }

  /** Draws it where the last one was; resolves to its view, to null where another one came meanwhile. */
  site.draw = async (place, figure) => {
    const turn = (turns.get(place.id) || 0) + 1;
    turns.set(place.id, turn);
    forget(place.id);
    place.replaceChildren();
    place.dataset.drawn = site.isDark() ? "dark" : "light";
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", figure.name);
    const view = await Bokeh.Plotting.show(figure, place);
    if (turns.get(place.id) !== turn) { view.remove(); return null; }
    drawn.set(place.id, view);
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
