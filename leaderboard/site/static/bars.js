// Small drawings inside the table: where an interval lies, and which places of the ranking are left open.
"use strict";

(function (site) {
  const WIDTH = 84;
  const HEIGHT = 12;
  const LEAST = 0.4;  // an AUC's scale: a bit below guessing, to 1

  const across = (auc) => (WIDTH * (Math.min(Math.max(auc, LEAST), 1) - LEAST)) / (1 - LEAST);
  const drawing = (...parts) => site.svg("svg", { class: "bar", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, ...parts);

  /** An AUC with its interval on one scale for the whole table, in tenths; the dashed tick is guessing. */
  const tenths = [0.4, 0.6, 0.7, 0.8, 0.9, 1];
  site.aucBar = ([mean, low, high]) => drawing(
    ...tenths.map((auc) => site.svg("line", { x1: across(auc), x2: across(auc), y1: 3, y2: HEIGHT - 3, class: "tenth" })),
    site.svg("line", { x1: across(0.5), x2: across(0.5), y1: 0, y2: HEIGHT, class: "guess" }),
    low === null || high === null ? null : site.svg("line", { x1: across(low), x2: across(high), y1: HEIGHT / 2, y2: HEIGHT / 2, class: "whisker" }),
    site.svg("circle", { cx: across(mean), cy: HEIGHT / 2, r: 2.4, class: "dot" }),
  );

  /** The ranks of a row among n; strips of rows that differ with significance may overlap. */
  site.rankBar = ([best, worst], n) => {
    const step = WIDTH / 1.5 / n;
    return site.svg("svg", { class: "bar", width: WIDTH / 1.5, height: HEIGHT, viewBox: `0 0 ${WIDTH / 1.5} ${HEIGHT}`, "aria-hidden": "true" },
      site.svg("rect", { x: 0, y: 4, width: WIDTH / 1.5, height: 4, class: "track" }),
      site.svg("rect", { x: step * (best - 1), y: 2, width: step * (worst - best + 1), height: 8, rx: 2, class: "places" }));
  };
})(window.fedbenchSite);
