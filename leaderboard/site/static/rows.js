// Which rows are shown, in which order, with which numbers. Nothing here touches the page.
"use strict";

(function (site) {
  const board = site.board;
  const names = board.settings.map((s) => s.name);
  const settingName = (i) => (names.indexOf(names[i]) === names.lastIndexOf(names[i]) ? names[i] : `${board.settings[i].suite}: ${names[i]}`);

  /** Setting, coalition and view of a section, by the names of the filters. */
  site.place = (section) => ({ setting: settingName(section.setting), coalition: section.coalition, view: section.view });
  site.firstPlace = board.sections.length ? site.place(board.sections[0]) : { setting: "", coalition: "", view: "" };

  site.sectionOf = (row) => board.sections[row.section];
  site.attackNames = (section) => section.attacks.map((use) => board.uses[use].label);

  /** What a filter compares with its value: every one that a row answers to. */
  const ANSWERS = {
    setting: (row) => [site.place(site.sectionOf(row)).setting],
    coalition: (row) => [site.sectionOf(row).coalition],
    view: (row) => [site.sectionOf(row).view],
    attack: (row) => site.attackNames(site.sectionOf(row)),
    defense: (row) => [row.label],
    package: (row) => row.packages,
  };
  site.answers = (row, filter) => ANSWERS[filter](row);

  const matches = (row, state, filters) => filters.every((f) => state[f] === "" || ANSWERS[f](row).includes(state[f]));

  /** The entry of the attack that is filtered for; null without one. */
  site.chosen = (row, state) => {
    const at = state.attack === "" ? -1 : site.attackNames(site.sectionOf(row)).indexOf(state.attack);
    return at < 0 ? null : row.entries[at];
  };

  /** The interval (or other value) that a column shows of a row; null: not known. */
  site.value = (row, key, state) => {
    const entry = site.chosen(row, state);
    if (entry && key === "worst") return entry.auc;
    if (entry && key === "tf01") return entry.tf01;
    if (key in ANSWERS) return ANSWERS[key](row).join(", ");
    if (key === "cells") return row.outcomes.reduce((n, [outcome, count]) => n + (board.outcomes[outcome] === "missing" ? 0 : count), 0);
    return row[key] ?? null;
  };

  /** [first, second, ...] to compare by; null: last, whichever way the column is sorted. */
  function weight(row, key, state) {
    const value = site.value(row, key, state);
    if (value === null) return null;
    return key === "rank" ? value : [Array.isArray(value) ? value[0] : value];
  }

  function compare(a, b) {
    for (let i = 0; i < a.length; i += 1) {
      if (typeof a[i] === "string") { const by = a[i].localeCompare(b[i]); if (by) return by; }
      else if (a[i] !== b[i]) return a[i] - b[i];
    }
    return 0;
  }

  /** Numbers of the rows that the state asks for, in its order; the board's own where it asks for none. */
  site.shown = (state) => {
    const found = board.rows.map((_, i) => i).filter((i) => matches(board.rows[i], state, site.FILTERS));
    if (!state.sort) return found;
    const weights = new Map(found.map((i) => [i, weight(board.rows[i], state.sort, state)]));
    const sign = state.dir === "desc" ? -1 : 1;
    return found.sort((i, j) => {  // sort() is stable: equals keep the board's order
      const [a, b] = [weights.get(i), weights.get(j)];
      return a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b);
    });
  };

  /** The place after one of its filters changed: the same where there is such a section, else the first that fits the change. */
  site.placeAfter = (state, filter, value) => {
    const wanted = { ...site.firstPlace, setting: state.setting, coalition: state.coalition, view: state.view, [filter]: value };
    const places = board.sections.map(site.place);
    const fits = (place, filters) => filters.every((f) => wanted[f] === "" || wanted[f] === place[f]);
    if (places.some((p) => fits(p, site.PLACE))) return wanted;
    const found = places.find((p) => fits(p, [filter]));
    return found ? { ...found, [filter]: value } : wanted;
  };

  /** The row that [label, setting, coalition, view] names; -1: none. */
  site.rowNamed = ([label, setting, coalition, view]) => board.rows.findIndex((row) => {
    const place = site.place(site.sectionOf(row));
    return row.label === label && place.setting === setting && place.coalition === coalition && place.view === view;
  });
  site.rowName = (row) => [row.label, ...Object.values(site.place(site.sectionOf(row)))];
})(window.fedbenchSite);
