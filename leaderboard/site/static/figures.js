// Both figures show one section: that of the open row, else the first that the table shows.
"use strict";

(function (site) {
  const board = site.board;

  /** A table of texts. */
  site.plainTable = (caption, heads, lines) => site.el("table", {}, site.el("caption", {}, caption), site.el("thead", {}, site.el("tr", {}, heads.map((h) => site.el("th", { scope: "col" }, h)))),
    site.el("tbody", {}, lines.map(([first, ...others]) => site.el("tr", {}, site.el("th", { scope: "row" }, site.name(first)), others.map((t) => site.el("td", {}, site.name(t)))))));

  /** The same as a figure, folded. */
  site.numbers = (caption, heads, lines) => site.el("details", {}, site.el("summary", {}, "The same as a table"),
    site.el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, site.plainTable(caption, heads, lines)));

  const legend = site.el("ul", { class: "legend", "aria-label": "Defenses of the figures" });
  const where = site.el("p", { class: "hint", id: "figures-where" });

  function showLegend(section, shown, open) {
    const looks = section ? site.looks(section) : new Map();
    const rows = section ? section.rows.filter((i) => shown.includes(i)) : [];
    legend.replaceChildren(...rows.map((i) => site.el("li", {}, site.el("button", { type: "button", "aria-pressed": String(i === open), onclick: () => site.toggleRow(i) },
      site.swatch(looks.get(i)), site.name(board.rows[i].label)))));
  }

  let last = "";
  function show(state, again) {
    const shown = site.shown({ ...state, sort: "" });
    const open = site.rowNamed(state.row);
    const number = open >= 0 ? board.rows[open].section : shown.length ? board.rows[shown[0]].section : -1;
    const section = number < 0 ? null : board.sections[number];
    const inside = open >= 0 && !shown.includes(open) ? [...shown, open] : shown;
    const wanted = JSON.stringify([number, inside, state.attack, state.roc, open]);
    site.showRecord(state, again);
    if (wanted === last && !again) return;
    last = wanted;
    const place = section ? site.place(section) : null;
    where.replaceChildren(...(place ? ["Both figures: setting ", site.name(place.setting), ", coalition ", site.name(place.coalition), ", ", site.name(place.view), " view."] : []));
    showLegend(section, inside, open);
    Promise.all([site.showPlane(section, inside, state, open), site.showRoc(section, inside, state, open)]).then(() => {
      document.documentElement.dataset.figures = String(Number(document.documentElement.dataset.figures || 0) + 1);
      performance.mark("fedbench-figures");
    });
  }

  const [plane, roc] = [site.at("plane-section"), site.at("roc-section")];
  plane.before(where, legend, site.el("div", { class: "figures" }));
  plane.previousElementSibling.append(plane, roc);
  document.addEventListener("fedbench-theme", () => show(site.state(), true));
  site.onChange((state) => show(state, false));
})(window.fedbenchSite);
