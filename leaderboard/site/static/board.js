// The page shows what its address says; keys and buttons change the address.
"use strict";

(function (site) {
  const drawn = [];  // what later scripts add: figures and records
  let opener = { row: -1, cell: "" };

  /** A further part of the page; called now and at every change. */
  site.onChange = (show) => { drawn.push(show); show(site.state()); };

  let shown = null;
  function showAll(user) {
    if (location.hash === shown) return;
    shown = location.hash;
    const state = site.state();
    site.showFilters(state);
    site.showRanking(state);
    const opened = site.showCells(state);
    for (const show of drawn) show(state);
    if (user) moveFocus(state, opened);
    opener = { row: site.rowNamed(state.row), cell: state.cell };
  }

  /** To what was opened, or back to what opened what was closed. */
  function moveFocus(state, opened) {
    const closedCell = opener.cell !== "" && state.cell === "";
    const closedRow = opener.row >= 0 && site.rowNamed(state.row) < 0;
    if (state.cell !== "" && state.cell !== opener.cell) site.at("record-title").focus();
    else if (opened) site.at("cells-title").focus();
    else if (closedRow) site.rowElement(opener.row).querySelector("button.open").focus();
    else if (closedCell) document.querySelector(`button.cell[data-cell="${CSS.escape(opener.cell)}"]`)?.focus();
  }

  site.closeRecord = () => site.change({ cell: null });
  site.closeRow = () => site.change({ row: null, cell: null });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    const state = site.state();
    if (state.cell) site.closeRecord();
    else if (state.row.length) site.closeRow();
  });
  site.at("cells-close").addEventListener("click", site.closeRow);
  site.at("record-close").addEventListener("click", site.closeRecord);
  site.changed = () => showAll(true);
  window.addEventListener("hashchange", site.changed);  // back, forward, or an address typed in

  showAll(false);
  document.documentElement.dataset.usable = "yes";  // the table can be read, sorted and filtered; figures follow
  performance.mark("fedbench-usable");
})(window.fedbenchSite);
