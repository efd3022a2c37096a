// The look of a defense: the same colour, dash and shape in the table, the legend and every figure of its section.
"use strict";

(function (site) {
  const COLOURS = 7;  // --c0 to --c6 of the style sheet; shapes and dashes repeat the distinction
  const DASHES = ["", "6 2", "2 2", "7 2 2 2"];
  const MARKERS = ["circle", "diamond", "triangle", "inverted_triangle", "hex", "star"];
  const OUTLINES = {  // in a box of 12 by 12
    circle: null,
    square: "2,2 10,2 10,10 2,10",
    diamond: "6,0.5 11,6 6,11.5 1,6",
    triangle: "6,1 11.5,10.5 0.5,10.5",
    inverted_triangle: "6,11 11.5,1.5 0.5,1.5",
    hex: "3,1 9,1 11.5,6 9,11 3,11 0.5,6",
    star: "6,0.5 7.6,4.4 11.7,4.6 8.5,7.2 9.6,11.3 6,9 2.4,11.3 3.5,7.2 0.3,4.6 4.4,4.4",
  };

  /** Row number -> {property, dash, marker}; the undefended row is drawn in the colour of the text. */
  site.looks = (section) => {
    const rows = section.rows.map((i) => [i, site.board.rows[i]]);
    const defended = rows.filter(([, row]) => !row.undefended).sort(([, a], [, b]) => a.label.localeCompare(b.label));
    const found = new Map(defended.map(([i, row], n) => [i, {
      property: `--c${n % COLOURS}`, dash: DASHES[n % DASHES.length], marker: MARKERS[n % MARKERS.length], hollow: row.floor,
    }]));
    for (const [i, row] of rows) if (row.undefended) found.set(i, { property: "--fg", dash: "", marker: "square", hollow: false });
    return found;
  };

  /** The shape of a row beside its name; says nothing to a screen reader, for the name does. */
  site.swatch = (look) => {
    const paint = look.hollow ? { fill: "none", "stroke-width": 1.6 } : { fill: "currentColor" };
    const shape = OUTLINES[look.marker] === null
      ? site.svg("circle", { cx: 6, cy: 6, r: 5, ...paint, stroke: "currentColor" })
      : site.svg("polygon", { points: OUTLINES[look.marker], ...paint, stroke: "currentColor" });
    const made = site.svg("svg", { viewBox: "-1 -1 14 14", width: 13, height: 13, class: "swatch", "aria-hidden": "true" }, shape);
    made.style.color = `var(${look.property})`;
    return made;
  };

  /** A text for a canvas: short, and without the marks that turn what follows around. */
  site.short = (text, limit = 24) => {
    const plain = text.replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
    return [...plain].length > limit ? `${[...plain].slice(0, limit - 1).join("")}\u2026` : plain;
  };
})(window.fedbenchSite);
