// What a cell opens: how its scores lie, how its run went, with what it was made, and how to make it again.
"use strict";

(function (site) {
  const board = site.board;
  const { cells, runs } = board;
  const panel = site.at("record");
  const body = site.at("record-body");
  const BINS = 20;

  /** "clients 0, 1"; negative numbers are the honest ones together, and groups. */
  const targetName = (t) => (t >= 0 ? `client ${t}` : t === -3 ? "all honest clients" : t <= -10 ? `group ${-10 - t}` : `target ${t}`);

  function command(c, r) {
    const parts = [board.onlys[runs.only[r]], board.uses[cells.attack[c]].only];
    return board.command && parts.every(Boolean) ? `${board.command} --only ${parts[0]} --only seed=${runs.seed[r]} --only ${parts[1]}` : "";
  }

  /** The command and its button. Where the browser lends no clipboard the text is selected instead. */
  function reproduce(text) {
    if (!text) return site.el("p", {}, "No command can be written for this cell: its names hold what no command line takes, or its suite is not known.");
    const code = site.el("code", { class: "command", id: "command" }, text);
    const said = site.el("span", { role: "status", class: "copied" });
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(text);
        said.textContent = "Copied.";
      } catch (error) {
        getSelection().selectAllChildren(code);
        said.textContent = `Selected: the clipboard is closed to this page (${error.name}).`;
      }
    };
    return site.el("div", { class: "reproduce" }, code, site.el("button", { type: "button", id: "copy", onclick: copy }, "Copy command"), said);
  }

  const known = (value) => value !== null && value !== undefined;
  const auc = (value, error) => (known(value) ? `${value.toFixed(3)}${known(error) ? ` \u00b1 ${(1.96 * error).toFixed(3)}` : ""}` : "n/a");

  function perTarget(c) {
    const targets = cells.targets[c] < 0 ? [] : board.targets[cells.targets[c]];
    if (!targets.length) return null;
    const [aucs, errors] = [site.aucs(c), site.errors(c)];
    const lines = targets.map((t, n) => [targetName(t), auc(aucs[n], errors[n]), site.number("tf01", cells.tf01[c][n])]);
    return part("As measured", site.plainTable("Against each target; \u00b1 is 1.96 standard errors", ["target", "AUC", "TF01"], lines));
  }

  const SIDES = [["members", "--c1"], ["non-members", "--c0"]];
  const sides = () => site.el("p", { class: "hint" }, SIDES.map(([title, property]) => site.el("span", { class: "side" }, site.swatch({ property, marker: "square", hollow: false }), title)));

  function drawScores(place, c) {
    const packed = site.unpack(cells.scores[c]);
    const [low, high] = cells.range[c];
    const step = (high - low) / BINS || 1;
    const left = [...Array(BINS).keys()].map((n) => low + n * step);
    const figure = site.figure({ x: "score", y: "share of candidates", height: 260, label: "Histogram of the scores of members and non-members" });
    for (const [n, [title, property]] of SIDES.entries()) {
      const counts = packed.slice(n * BINS, (n + 1) * BINS);
      const sum = counts.reduce((a, b) => a + b, 0) || 1;
      const source = new Bokeh.ColumnDataSource({ data: {
        left, right: left.map((x) => x + step), top: counts.map((v) => v / sum), zero: counts.map(() => 0), who: counts.map(() => title), count: counts.map((v) => `${v} of ${sum}`),
        score: left.map((x) => `${x.toPrecision(3)} to ${(x + step).toPrecision(3)}`),
      } });
      const made = figure.quad({ left: { field: "left" }, right: { field: "right" }, top: { field: "top" }, bottom: { field: "zero" }, fill_alpha: 0.4, fill_color: site.colour(property), line_color: site.colour(property), source });
      site.hover(figure, [made], [["who", "who"], ["score", "score"], ["candidates", "count"]]);
    }
    return site.draw(place, figure);
  }

  function drawHistory(place, r) {
    const rounds = board.rounds[runs.rounds[r]];
    const accuracy = runs.history[r][0];
    const { title, unit, scale } = board.columns.find((c) => c.key === "accuracy");
    const figure = site.figure({ x: "round", y: `test ${title}, ${unit}`, height: 260, label: `Test ${title} over the audited rounds` });
    const source = new Bokeh.ColumnDataSource({ data: { x: rounds, y: accuracy.map((a) => (known(a) ? scale * a : NaN)), round: rounds.map(String), accuracy: accuracy.map((a) => site.number("accuracy", a)), loss: runs.history[r][1].map((l) => (known(l) ? l.toPrecision(3) : "n/a")) } });
    figure.line({ x: { field: "x" }, y: { field: "y" }, line_color: site.colour("--c0"), line_width: 2, source });
    const made = figure.scatter({ x: { field: "x" }, y: { field: "y" }, size: 8, color: site.colour("--c0"), source });
    site.hover(figure, [made], [["round", "round"], [title, "accuracy"], ["training loss", "loss"]]);
    return site.draw(place, figure);
  }

  const use = (i) => { const u = board.uses[i]; return u.params.map(([k, v]) => `${k}=${v}`).join(", ") || "none"; };
  const seconds = (s) => (known(s) ? `${Number(s.toPrecision(3))} s` : "n/a");

  function parameters(c, r) {
    const [attack, defense] = [board.uses[cells.attack[c]], board.uses[runs.defense[r]]];
    const [group, members, others] = board.samples[cells.sample[c]];
    return [[`defense ${defense.label} (${defense.package})`, use(runs.defense[r])], [`attack ${attack.label} (${attack.package})`, use(cells.attack[c])],
      ["coalition", `${runs.coalition[r]}: ${runs.members[r].length ? `clients ${runs.members[r].join(", ")}` : "no members"}`],
      ["active attack inside the run", runs.adversary[r]], ["candidates", `${members} members and ${others} non-members, ${group === "ofl" ? "from outside the federation" : "from in- and outside the federation"}`]]
      .filter(([, text]) => text);
  }

  function provenance(c, r) {
    const [cpu, wall, all, signals, memory] = runs.times[r];
    return [["record", cells.key[c]], ["run", runs.key[r]], ["started", runs.started[r]], ["training", `${seconds(cpu)} CPU, ${seconds(wall)} wall`],
      ["whole run", seconds(all)], ["signals", `${seconds(signals)} CPU`], ["attack", `${seconds(cells.cpu_s[c])} CPU`], ["peak memory", known(memory) ? `${Math.round(memory)} MB` : "n/a"],
      ["code", `defense ${board.uses[runs.defense[r]].digest}, attack ${board.uses[cells.attack[c]].digest}`], ...board.machines[runs.machine[r]]].filter(([, text]) => text);
  }

  const part = (title, ...inside) => site.el("div", { class: "part" }, site.el("h3", {}, title), ...inside);

  function show(c) {
    const r = cells.run[c];
    const reason = board.reasons[cells.reason[c]];
    const facts = runs.facts[r].map((f) => board.facts[f]);
    site.at("record-title").replaceChildren("Record: ", site.name(board.uses[cells.attack[c]].label), " against ", site.name(board.uses[runs.defense[r]].label), `, seed ${runs.seed[r]}`);
    const [scores, history] = [site.el("div", { id: "scores", class: "plot" }), site.el("div", { id: "history", class: "plot" })];
    const hasScores = cells.scores[c] && cells.range[c];
    const hasHistory = runs.rounds[r] >= 0 && runs.history[r] && runs.history[r].length;
    body.replaceChildren(
      part("Make it again", reproduce(command(c, r))),
      reason ? site.el("p", { class: "remark" }, `${board.outcomes[cells.outcome[c]]}: `, site.name(reason)) : "",
      site.el("div", { class: "figures" }, part("Scores", ...(hasScores ? [sides(), scores] : [site.el("p", {}, "No scores are stored.")])), part("Over the rounds", hasHistory ? history : site.el("p", {}, "No history is stored."))),
      perTarget(c) || "", part("Parameters", site.facts(parameters(c, r))),
      facts.length ? part("What the defense says of the run", site.facts(facts)) : "", part("Provenance", site.facts(provenance(c, r))));
    if (hasScores) drawScores(scores, c);
    if (hasHistory) drawHistory(history, r);
  }

  let open = "";
  site.showRecord = (state, again) => {
    if (state.cell === open && !again) return;
    open = state.cell;
    const c = open ? cells.key.indexOf(open) : -1;
    panel.hidden = open === "";
    for (const id of ["scores", "history"]) if (site.at(id)) site.undraw(site.at(id), "");
    if (c >= 0) show(c);
    else if (open) { site.at("record-title").textContent = "Record"; body.replaceChildren(site.el("p", {}, "This board has no such record.")); }
    else body.replaceChildren();
  };
})(window.fedbenchSite);
