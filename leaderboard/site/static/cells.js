// What a row opens: its cells, attacks by seeds, and what is remarked about it.
"use strict";

(function (site) {
  const board = site.board;
  const SEEDS = 20;  // columns at once; more on demand
  const LONG = 90;  // letters that want a line of their own
  const panel = site.at("cells");
  const title = site.at("cells-title");
  const body = site.at("cells-body");

  const average = (values) => {
    const known = values.filter((v) => v !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  };

  /** The number of a cell: its AUC as measured, over its targets; how it ended where it has none. */
  site.cellText = (c) => {
    const mean = average(site.aucs(c));
    return mean === null ? board.outcomes[board.cells.outcome[c]] : site.number("worst", mean);
  };

  function button(c) {
    const run = board.cells.run[c];
    const attack = board.uses[board.cells.attack[c]].label;
    return site.el("button", {
      type: "button", class: "cell", "data-cell": board.cells.key[c], title: board.reasons[board.cells.reason[c]] || null,
      "aria-label": `${attack}, seed ${board.runs.seed[run]}: ${site.cellText(c)}. Open the record`,
      onclick: () => site.change({ cell: site.state().cell === board.cells.key[c] ? null : board.cells.key[c] }),
    }, site.cellText(c));
  }

  function matrix(row, section, attack, from, to) {
    const names = site.attackNames(section);
    const lines = names.map((name, a) => (attack === "" || attack === name ? a : -1)).filter((a) => a >= 0);
    return site.el("table", { class: "cells" },
      site.el("caption", {}, "AUC as measured, by attack and seed (mean over the seed\u2019s targets). A cell opens its record."),
      site.el("thead", {}, site.el("tr", {}, site.el("th", { scope: "col" }, "attack"), site.el("th", { scope: "col" }, "over all seeds"),
        section.seeds.slice(from, to).map((seed) => site.el("th", { scope: "col" }, `seed ${seed}`)))),
      site.el("tbody", {}, lines.map((a) => site.el("tr", {},
        site.el("th", { scope: "row" }, site.name(names[a]), row.entries[a].turned ? site.el("small", {}, " turned") : null),
        site.el("td", { class: "over" }, site.said("worst", row.entries[a].auc)),
        row.entries[a].cells.slice(from, to).map((c) => site.el("td", {}, c < 0 ? "\u2013" : button(c)))))));
  }

  function pages(row, section, attack) {
    const box = site.el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Cells of the row" });
    const more = site.el("button", { type: "button", class: "more", onclick: () => show(shown + SEEDS) });
    let shown = 0;
    function show(n) {
      shown = Math.min(n, section.seeds.length);
      box.replaceChildren(matrix(row, section, attack, 0, shown));
      more.hidden = shown >= section.seeds.length;
      more.textContent = `Show more seeds (${shown} of ${section.seeds.length} shown)`;
      site.markCell();
    }
    return { box, more, show };
  }

  function facts(row, section) {
    const use = board.uses[row.defense];
    const place = site.place(section);
    const outcomes = row.outcomes.map(([o, n]) => `${n} ${board.outcomes[o]}`).join(", ");
    const pairs = [["where", `${place.setting}, coalition ${place.coalition}, ${place.view} view`], ["package", row.packages.join(", ")], ["cells", outcomes],
      ["parameters", use.params.map(([k, v]) => `${k}=${v}`).join(", ")], ["claims", row.claims], ["trust", row.trust]];
    return site.facts(pairs.filter(([, text]) => text));
  }

  /** Names and texts as a description list. */
  site.facts = (pairs) => site.el("dl", { class: "facts" }, pairs.map(([name, text]) => site.el("div", { class: text.length > LONG ? "long" : null }, site.el("dt", {}, site.name(name)), site.el("dd", {}, site.name(text)))));

  site.markCell = () => {
    const key = site.state().cell;
    for (const one of body.querySelectorAll("button.cell")) one.setAttribute("aria-expanded", String(one.dataset.cell === key));
  };

  let open = "";
  /** Shows the state's row; returns whether it was opened now. */
  site.showCells = (state) => {
    const i = site.rowNamed(state.row);
    const wanted = i < 0 ? "" : `${i} ${state.attack}`;
    if (wanted === open) { site.markCell(); return false; }
    const before = open;
    open = wanted;
    panel.hidden = i < 0;
    if (i < 0) { body.replaceChildren(); return false; }
    const row = board.rows[i];
    const section = site.sectionOf(row);
    title.replaceChildren("Cells of ", site.name(row.label));
    const { box, more, show } = pages(row, section, section.attacks.length && site.attackNames(section).includes(state.attack) ? state.attack : "");
    body.replaceChildren(facts(row, section), ...row.remarks.map((text) => site.el("p", { class: "remark" }, site.name(text))), box, more);
    show(SEEDS);
    return before.split(" ")[0] !== String(i);
  };

  /** Opens a row, or closes it where it is open. */
  site.toggleRow = (i) => {
    const closing = site.rowNamed(site.state().row) === i;
    site.change(closing ? { row: null, cell: null } : { row: site.rowName(board.rows[i]), cell: null });
  };
})(window.fedbenchSite);
