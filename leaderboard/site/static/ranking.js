// The table: its rows stand in the page already; this orders and hides them, and writes the numbers of the state.
"use strict";

(function (site) {
  const board = site.board;
  const table = site.at("ranking");
  const body = table.tBodies[0];
  const rows = new Map([...body.rows].map((tr) => [Number(tr.dataset.row), tr]));
  const heads = new Map([...table.querySelectorAll("th[data-key]")].filter((th) => th.scope === "col").map((th) => [th.dataset.key, th]));
  const titles = new Map([...heads].map(([key, th]) => [key, th.querySelector("button").textContent]));
  const ranked = board.sections.map((s) => Math.max(1, ...s.rows.map((i) => (board.rows[i].rank || [0, 0])[1])));
  const looks = board.sections.map(site.looks);
  const FALLING = [...board.columns.filter((c) => c.direction === "higher").map((c) => c.key), "cells"];  // the first click shows the largest: there more is better

  const cell = (tr, key) => tr.querySelector(`:scope > [data-key="${key}"]`);

  /** The attack of the number in a cell, "" for a number of no one attack. */
  function attackOf(row, key, state) {
    const at = key === "worst" ? row.worst_attack : key === "tf01" ? row.tf01_attack : -1;
    return state.attack || at < 0 ? state.attack : site.attackNames(site.sectionOf(row))[at];
  }

  function writeInterval(td, row, key, state) {
    const interval = site.value(row, key, state);
    td.classList.toggle("na", interval === null);
    if (interval === null) { td.replaceChildren("n/a"); return; }
    const attack = key === "worst" || key === "tf01" ? attackOf(row, key, state) : "";
    const range = interval[1] === interval[2] ? "" : site.range(key, interval);
    const below = [key === "worst" ? site.aucBar(interval) : null, attack && !state.attack ? site.el("span", { class: "by" }, site.name(attack)) : null];
    td.replaceChildren(site.el("div", { class: "number" }, site.el("span", { class: "mean" }, site.number(key, interval[0])), range && site.el("span", { class: "range" }, range)));
    if (below.some(Boolean)) td.append(site.el("div", { class: "below" }, ...below));
  }

  /** What never changes: shapes and the strips of ranks. */
  function prepare() {
    for (const [i, tr] of rows) {
      const row = board.rows[i];
      cell(tr, "defense").prepend(site.swatch(looks[row.section].get(i)));
      if (row.rank) cell(tr, "rank").append(site.rankBar(row.rank, ranked[row.section]));
    }
    writeAttack({ attack: "" });
  }

  let attackShown = null;
  function writeAttack(state) {
    if (state.attack === attackShown) return;
    attackShown = state.attack;
    for (const [i, tr] of rows) for (const key of ["worst", "tf01"]) if (cell(tr, key)) writeInterval(cell(tr, key), board.rows[i], key, state);
    for (const [key, title] of [["worst", "AUC"], ["tf01", "TF01"]]) {
      const button = heads.get(key)?.querySelector("button");
      if (button) button.replaceChildren(...(state.attack ? [`${title}, `, site.name(state.attack)] : [titles.get(key)]));
    }
  }

  /** Places that all shown rows share need no column; the mean over attacks is not one attack's. */
  function hideColumns(state, found) {
    for (const [key, th] of heads) {
      const same = site.PLACE.includes(key) && new Set(found.map((i) => site.answers(board.rows[i], key)[0])).size < 2;
      const hidden = same || (key === "mean" && state.attack !== "");
      th.hidden = hidden;
      for (const tr of rows.values()) { const td = cell(tr, key); if (td) td.hidden = hidden; }
    }
  }

  function order(found) {
    const shown = new Set(found);
    for (const [i, tr] of rows) tr.hidden = !shown.has(i);
    body.append(...found.map((i) => rows.get(i)));
  }

  /** The answers of the sections that have a row in the table. */
  function showAnswers(found) {
    const sections = new Set(found.map((i) => board.rows[i].section));
    for (const li of document.querySelectorAll("#answers li")) li.hidden = !sections.has(Number(li.dataset.section));
  }

  function markHeads(state) {
    for (const [key, th] of heads) {
      if (key === state.sort) th.setAttribute("aria-sort", state.dir === "desc" ? "descending" : "ascending");
      else th.setAttribute("aria-sort", "none");
    }
  }

  function say(state, found) {
    const by = state.sort && heads.has(state.sort) ? `, by ${heads.get(state.sort).querySelector("button").textContent}, ${state.dir === "desc" ? "descending" : "ascending"}` : "";
    const none = found.length ? "" : " No row has all of these: choose \u201call\u201d somewhere, or reset.";
    site.at("f-count").textContent = `${found.length} of ${board.rows.length} rows shown${by}.${none}`;
  }

  site.showRanking = (state) => {
    const found = site.shown(state);
    writeAttack(state);
    hideColumns(state, found);
    order(found);
    showAnswers(found);
    markHeads(state);
    say(state, found);
    const open = site.rowNamed(state.row);
    for (const [i, tr] of rows) {
      tr.classList.toggle("open", i === open);
      tr.querySelector("button.open")?.setAttribute("aria-expanded", String(i === open));
    }
  };

  /** Ascending, descending, then the board's own order; where more is better, descending first. */
  function nextSort(state, key) {
    const [first, second] = FALLING.includes(key) ? ["desc", "asc"] : ["asc", "desc"];
    const now = state.dir || "asc";
    if (state.sort !== key) return { sort: key, dir: first };
    return now === first ? { sort: key, dir: second } : { sort: null, dir: null };
  }

  table.tHead.addEventListener("click", (event) => {
    const th = event.target.closest("th[data-key]");
    if (event.target.closest("button")) site.change(nextSort(site.state(), th.dataset.key));
  });
  body.addEventListener("click", (event) => {
    const tr = event.target.closest("tr[data-row]");
    const selecting = String(getSelection()) !== "";  // whoever copies a number opens nothing
    if (tr && !event.target.closest("a") && (event.target.closest("button.open") || !selecting)) site.toggleRow(Number(tr.dataset.row));
  });

  site.rowElement = (i) => rows.get(i);
  prepare();
})(window.fedbenchSite);
