// Elements out of data: text is set as text, never parsed.
"use strict";

(function (site) {
  const SVG = "http://www.w3.org/2000/svg";

  function put(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
    }
    for (const child of children.flat(Infinity)) if (child !== null && child !== "") element.append(child);  // append() makes text of strings
    return element;
  }

  /** An HTML element; attributes that begin with "on" are listeners. */
  site.el = (tag, attributes = {}, ...children) => put(document.createElement(tag), attributes, children);

  /** An SVG element. */
  site.svg = (tag, attributes = {}, ...children) => put(document.createElementNS(SVG, tag), attributes, children);

  /** Text of any origin, isolated from the direction of the text around it. */
  site.name = (text) => site.el("bdi", { class: "name" }, text);

  /** The one element of that id. */
  site.at = (id) => document.getElementById(id);
})(window.fedbenchSite);
