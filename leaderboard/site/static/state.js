// What is seen is what the address says: filters, order, the open row and cell stand behind the #.
"use strict";

(function (site) {
  const PLACE = ["setting", "coalition", "view"];
  const FILTERS = [...PLACE, "attack", "defense", "package"];
  const OTHERS = ["sort", "dir", "roc", "cell"];
  const SORTS = ["setting", "coalition", "view", "rank", "defense", ...site.board.columns.map((c) => c.key), "cells"];

  const read = () => new URLSearchParams(location.hash.slice(1));

  /** Absent: as the page opens (the first section); "": all. The open row is [label, setting, coalition, view]. */
  function parsed() {
    const given = read();
    const state = { row: given.getAll("row") };
    for (const name of FILTERS) state[name] = given.get(name) ?? (PLACE.includes(name) ? site.firstPlace[name] : "");
    for (const name of OTHERS) state[name] = given.get(name) ?? "";
    if (!SORTS.includes(state.sort)) state.sort = "";  // an address may name anything
    return state;
  }

  /** Changes these parts of the address; null takes one away. The page shows it at once. */
  function change(parts) {
    const given = read();
    for (const [name, value] of Object.entries(parts)) {
      given.delete(name);
      for (const one of Array.isArray(value) ? value : value === null ? [] : [value]) given.append(name, one);
    }
    go(given.toString());
  }

  function go(hash) {
    location.hash = hash;
    site.changed();  // the browser tells of it later; who pressed a key should not wait
  }

  Object.assign(site, { PLACE, FILTERS, state: parsed, change, reset: () => go("") });
})(window.fedbenchSite);
