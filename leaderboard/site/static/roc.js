// Log-log ROC curves of one section: of one attack, or of each defense's worst case.
"use strict";

(function (site) {
  const place = site.at("roc");
  const select = site.at("roc-attack");
  const WORST = "";
  const AT = [0.001, 0.01, 0.1];  // false-positive rates of the table

  const percent = (rate) => `${Number((100 * rate).toPrecision(3))} %`;

  /** Curves to draw: {i, row, attack, fpr, tpr, low, high}. */
  function curves(section, shown, attack) {
    const names = site.attackNames(section);
    return section.rows.filter((i) => shown.includes(i)).map((i) => {
      const row = site.board.rows[i];
      const at = attack === WORST ? row.worst_attack : names.indexOf(attack);
      const found = at < 0 ? null : site.curve(section, row.entries[at]);
      return found && { i, row, attack: names[at], ...found };
    }).filter(Boolean);
  }

  const positive = (rates) => rates.map((v) => (v > 0 ? v : NaN));  // no rate of 0 on a logarithmic axis

  function line(figure, curve, look, wide) {
    const colour = site.colour(look.property);
    figure.step({ x: curve.fpr, y: positive(curve.tpr), mode: "after", line_color: colour, line_dash: site.dash(look), line_width: wide ? 3.5 : 2 });
  }

  function band(figure, curve, look) {
    const least = Math.min(...curve.fpr);
    figure.varea_step({ x: curve.fpr, y1: curve.low.map((v) => Math.max(v, least)), y2: curve.high.map((v) => Math.max(v, least)), step_mode: "after", fill_color: site.colour(look.property), fill_alpha: 0.16 });
  }

  /** Points that answer the pointer; the line itself has no values between them. */
  function answering(figure, found, looks) {
    const all = found.flatMap((c) => c.fpr.map((f, n) => ({ c, n, f })).filter((p) => p.c.tpr[p.n] > 0));
    const source = new Bokeh.ColumnDataSource({ data: {
      x: all.map((p) => p.f), y: all.map((p) => p.c.tpr[p.n]), colour: all.map((p) => site.colour(looks.get(p.c.i).property)),
      defense: all.map((p) => site.short(p.c.row.label, 60)), attack: all.map((p) => site.short(p.c.attack, 60)), fpr: all.map((p) => percent(p.f)),
      tpr: all.map((p) => `${percent(p.c.tpr[p.n])} [${percent(p.c.low[p.n])}, ${percent(p.c.high[p.n])}]`),
    } });
    const made = figure.scatter({ x: { field: "x" }, y: { field: "y" }, size: 9, alpha: 0, hover_alpha: 1, color: { field: "colour" }, source });
    site.hover(figure, [made], [["defense", "defense"], ["attack", "attack"], ["false-positive rate", "fpr"], ["true-positive rate", "tpr"]]);
  }

  function table(found) {
    const at = AT.filter((f) => found.some((c) => c.fpr[0] <= f * 1.001));
    const said = (c, f) => {
      const n = c.fpr.findLastIndex((x) => x <= f * 1.001);
      return n < 0 ? "n/a" : `${percent(c.tpr[n])} [${percent(c.low[n])}, ${percent(c.high[n])}]`;
    };
    site.at("roc-table").replaceChildren(site.numbers("True-positive rates", ["defense", "attack", ...at.map((f) => `at ${percent(f)} false positives`)],
      found.map((c) => [c.row.label, c.attack, ...at.map((f) => said(c, f))])));
  }

  /** The select: worst cases first, then the section's attacks; the filter for an attack decides where there is one. */
  function fill(section, state) {
    const names = section ? site.attackNames(section) : [];
    const chosen = state.attack || state.roc;
    select.replaceChildren(site.el("option", { value: WORST }, "each defense\u2019s worst case"), ...names.map((n) => site.el("option", { value: n }, site.short(n, 60))));
    select.disabled = state.attack !== "";
    select.value = names.includes(chosen) ? chosen : WORST;
    return select.value;
  }

  site.showRoc = async (section, shown, state, focus) => {
    const attack = fill(section, state);
    const found = section ? curves(section, shown, attack) : [];
    table(found);
    if (!found.length) { site.undraw(place, "No row that is shown has a curve."); return; }
    const looks = site.looks(section);
    const least = Math.min(...found.map((c) => c.fpr[0]));
    const range = () => new Bokeh.Range1d({ start: least, end: 1.05 });
    const figure = site.figure({
      x: "false-positive rate", y: "true-positive rate", xRange: range(), yRange: range(), log: true,
      label: `ROC curves of ${found.length} defenses, ${attack === WORST ? "each by its worst case" : `by ${attack}`}; rates stand in the table below it`,
    });
    figure.line({ x: [least, 1], y: [least, 1], line_color: site.colour("--muted"), line_dash: [2, 3] });
    if (least < 0.001) site.rule(figure, "height", 0.001, "dotted");
    const banded = found.some((c) => c.i === focus) ? [focus] : found.filter((c, n) => n === 0 || c.row.undefended).map((c) => c.i);
    for (const c of found) if (banded.includes(c.i)) band(figure, c, looks.get(c.i));
    for (const c of found) line(figure, c, looks.get(c.i), c.i === focus);
    answering(figure, found, looks);
    await site.draw(place, figure, { log: true, zooms: true });
  };

  select.addEventListener("change", () => site.change({ roc: select.value || null }));
})(window.fedbenchSite);
