// The page's scripts share one object, and Bokeh's style elements get the page's nonce.
"use strict";

window.fedbenchSite = { nonce: document.currentScript.nonce };

(function (site) {
  // Bokeh styles its shadow roots with <style> elements, which the page's policy allows with the nonce alone. Handing it to
  // them here keeps 'unsafe-inline' out of the policy: whoever cannot run a script cannot make such an element.
  const create = document.createElement.bind(document);
  document.createElement = function (name, options) {
    const made = create(name, options);
    if (made instanceof HTMLStyleElement) made.nonce = site.nonce;
    return made;
  };
})(window.fedbenchSite);
