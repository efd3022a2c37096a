// The board's data, and its numbers as people read them.
"use strict";

(function (site) {
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const LARGEST = 4095;
  const DECADES = 4;

  site.board = JSON.parse(site.at("board").textContent);

  /** So many characters a number (SCHEMA.md, "Packed numbers"). */
  site.unpack = (text, width = 2) => {
    const found = [];
    for (let i = 0; i < text.length; i += width) found.push([...text.slice(i, i + width)].reduce((sum, digit) => 64 * sum + DIGITS.indexOf(digit), 0));
    return found;
  };

  const NO_AUC = 64 ** 3 - 1;
  /** A cell's AUC and its standard error against each target; null: none. */
  site.aucs = (c) => site.unpack(site.board.cells.auc[c], 3).map((v) => (v === NO_AUC ? null : v / 1e5));
  site.errors = (c) => site.unpack(site.board.cells.error[c]).map((v) => (v === LARGEST ? null : v / 1e4));

  /** Packed rates: 0, or 1e-4 to 1 on a logarithmic scale. */
  site.rates = (text) => site.unpack(text).map((v) => (v === 0 ? 0 : 10 ** (DECADES * (v / LARGEST - 1))));

  /** A curve of an entry: its false-positive rates, its rates and their 95 % ends; null where there is none. */
  site.curve = (section, entry) => {
    if (!entry.roc) return null;
    const all = site.rates(entry.roc);
    const n = all.length / 3;
    return { fpr: site.board.fpr.slice(section.fpr_from, section.fpr_from + n), tpr: all.slice(0, n), low: all.slice(n, 2 * n), high: all.slice(2 * n) };
  };

  // What a column shows: factor, digits, unit, and whether a plus is written.
  const AS = Object.fromEntries(site.board.columns.map((c) => [c.key, [c.scale, c.digits, c.unit && ` ${c.unit}`, c.signed]]));
  for (const row of site.board.rows) Object.assign(row, row.numbers);

  function written(value, [factor, digits, , plus]) {
    const text = (factor * value).toFixed(digits);
    return (plus && Number(text) > 0 ? `+${text}` : text).replace(/^-/, "\u2212");  // a true minus sign
  }

  /** A number of a column; "n/a" for null. */
  site.number = (key, value) => {
    const as = AS[key];
    return value === null || value === undefined ? "n/a" : written(value, as) + as[2];
  };

  /** "[low, high]" of an interval, "" where its width is unknown. */
  site.range = (key, interval) => {
    const as = AS[key];
    return !interval || interval[1] === null || interval[2] === null ? "" : `[${written(interval[1], as)}, ${written(interval[2], as)}]`;
  };

  /** "0.619 [0.586, 0.652]". */
  site.said = (key, interval) => (interval ? `${site.number(key, interval[0])} ${site.range(key, interval)}`.trim() : "n/a");
})(window.fedbenchSite);
