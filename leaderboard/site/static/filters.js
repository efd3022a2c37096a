// The six selects: filled with what the board has, set to what the address says.
"use strict";

(function (site) {
  const board = site.board;
  const selects = new Map(site.FILTERS.map((f) => [f, site.at(`f-${f}`)]));

  function fill() {
    for (const [filter, select] of selects) {
      const found = [...new Set(board.rows.flatMap((row) => site.answers(row, filter)))];
      if (!site.PLACE.includes(filter)) found.sort((a, b) => a.localeCompare(b));
      const all = select.options[0] && select.options[0].value === "" ? [select.options[0]] : [site.el("option", { value: "" }, "all")];
      select.replaceChildren(...all, ...found.map((text) => site.el("option", { value: text, title: text.length > 60 ? text : null }, site.short(text, 60))));
      select.addEventListener("change", () => site.change(changes(filter, select.value)));
    }
  }

  /** A place may need another one beside it: a coalition that the new setting lacks would show nothing. */
  function changes(filter, value) {
    if (!site.PLACE.includes(filter)) return { [filter]: value || null };
    const after = site.placeAfter(site.state(), filter, value);
    return Object.fromEntries(site.PLACE.map((f) => [f, after[f]]));
  }

  site.showFilters = (state) => {
    for (const [filter, select] of selects) {
      // An address may name what this board does not have: the select says so instead of showing something else.
      select.querySelector("option.unknown")?.remove();
      if (![...select.options].some((o) => o.value === state[filter])) select.append(site.el("option", { value: state[filter], class: "unknown" }, site.short(state[filter], 60)));
      select.value = state[filter];
    }
  };

  site.at("f-reset").addEventListener("click", site.reset);
  site.at("filters").addEventListener("submit", (event) => event.preventDefault());
  fill();
})(window.fedbenchSite);
