// Light or dark: what the system prefers until a choice is made.
"use strict";

(function (site) {
  const KEY = "fedbench-theme";
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  // A browser may keep no storage for pages on disk: the choice then holds for the page alone.
  function stored() {
    try { return localStorage.getItem(KEY); } catch (error) { console.info("no storage for the theme:", error.name); return null; }
  }
  function store(value) {
    try { localStorage.setItem(KEY, value); } catch (error) { console.info("no storage for the theme:", error.name); }
  }

  function set(value) {
    if (value === "light" || value === "dark") root.dataset.theme = value;
    else delete root.dataset.theme;
  }

  site.isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  function tell() {
    button.textContent = site.isDark() ? "Light theme" : "Dark theme";
    document.dispatchEvent(new Event("fedbench-theme"));
  }

  const button = site.el("button", { type: "button", id: "theme", onclick: () => {
    set(site.isDark() ? "light" : "dark");
    store(root.dataset.theme);
    tell();
  } });
  set(stored());
  document.querySelector("header").append(button);
  system.addEventListener("change", tell);
  tell();

  const probe = site.el("span", { hidden: true });
  document.body.append(probe);
  /** The colour that a custom property of the style sheet has now: a canvas cannot read it by itself. */
  site.colour = (property) => {
    probe.style.color = `var(${property})`;
    return getComputedStyle(probe).color;
  };
})(window.fedbenchSite);
