"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const ROLES = {
    aten: "aten op", word: "ftc word, unbound or reference", kernel: "ftc word bound to a kernel", carry: "carry", weight: "weight",
    bank: "expert bank", constant: "constant", pool: "pool", state: "state of a pool", ordinal: "ordinal", step: "step input",
  };
  const THEMES = ["system", "light", "dark"];
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const wanted = new URLSearchParams(location.hash.slice(1));
  let theme = THEMES.includes(wanted.get("theme")) ? wanted.get("theme") : "system";
  let region = data.regions[wanted.get("region")] ? wanted.get("region") : data.region;
  let stage = data.stages.findIndex((s) => s.name === wanted.get("after"));
  if (stage < 0) stage = data.selected;
  let node = wanted.get("node") || "";
  let block = null;
  let drawn = "";

  const make = (tag, props, ...children) => {
    const element = Object.assign(document.createElement(tag), props);
    element.append(...children);
    return element;
  };
  const view = () => data.regions[region][stage];
  const nodes = (at = stage) => data.nodes[data.regions[region][at].view];
  const groups = (name) => [...$("canvas").querySelectorAll("[data-n]")].filter((g) => g.dataset.n === name);

  function remember() {
    const state = new URLSearchParams({ region, after: data.stages[stage].name });
    if (node) state.set("node", node);
    if (theme !== "system") state.set("theme", theme);
    history.replaceState(null, "", "#" + state);
  }

  function showTheme() {
    const dark = theme === "dark" || (theme === "system" && prefersDark.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = "theme: " + theme;
  }

  const names = Object.keys(data.regions);
  const kinds = names.filter((n) => n !== "embed" && n !== "head");
  const colour = (name) => (kinds.includes(name) ? "kind-" + (kinds.indexOf(name) % 6) : "kind-outer");

  function showStrip() {
    const { schedule, cut } = data.stages[stage];
    $("strip").className = cut ? "cut" : "";
    $("strip").replaceChildren(...schedule.map((calls, s) => {
      const segment = make("div", { className: "segment", title: cut ? "segment " + s : "" });
      segment.append(...calls.map(([name, number]) => {
        const call = make("button", { type: "button", className: "call " + colour(name), textContent: number ?? name });
        call.title = number === null ? "region " + name : `block ${number}: region ${name}`;
        call.setAttribute("aria-label", call.title);
        call.id = `call-${name}-${number}`;
        const chosen = name === region && (block === null || number === block);
        call.setAttribute("aria-pressed", chosen);
        call.onclick = () => { region = name; block = number; node = ""; show(); };
        return call;
      }));
      return segment;
    }));
  }

  function showPasses() {
    $("passes").replaceChildren($("passes").firstElementChild, ...data.stages.map((s, i) => {
      const input = make("input", { type: "radio", name: "pass", id: "pass-" + i, checked: i === stage });
      input.onchange = () => { stage = i; show(); };
      const label = make("label", { title: s.doc }, input, s.name);
      const { changed, gone } = data.regions[region][i] || { changed: [], gone: [] };
      const isNewCut = i > 0 && JSON.stringify(s.schedule) !== JSON.stringify(data.stages[i - 1].schedule);
      const text = changed.length + gone.length ? `${changed.length + gone.length} changed` : isNewCut ? "schedule" : "";
      if (text) label.append(make("span", { className: "count", textContent: text }));
      return label;
    }));
  }

  function showGraph() {
    const canvas = $("canvas");
    const place = drawn === region ? [canvas.scrollLeft, canvas.scrollTop] : null;
    drawn = region;
    canvas.replaceChildren($("drawing-" + view().view).content.cloneNode(true));
    $("text").replaceChildren($("text-" + view().view).content.cloneNode(true));
    canvas.querySelector("svg").setAttribute("aria-label", "region " + region);
    const changed = new Set(view().changed);
    const carry = canvas.querySelector(".box.carry [data-n]");
    for (const g of canvas.querySelectorAll("[data-n]")) {
      if (changed.has(g.dataset.n)) g.classList.add("changed");
      g.onclick = () => { node = g.dataset.n; mark(g); };
      g.onmouseenter = () => details(g.dataset.n);
      g.onmouseleave = () => details(node);
      g.onfocus = () => { if (node !== g.dataset.n) { node = g.dataset.n; mark(null); } };
    }
    if (!nodes()[node]) node = "";
    // stepping through passes keeps the place; a region opens at its carry
    if (place) canvas.scrollTo(...place);
    else if (carry) canvas.scrollLeft += carry.getBoundingClientRect().left - canvas.getBoundingClientRect().left - 0.62 * canvas.clientWidth;
    showOverview(canvas.querySelector("svg"));
    const first = carry || canvas.querySelector("[data-n]");
    if (first) first.tabIndex = 0;
    const roles = new Set(Object.values(nodes()).map((n) => (n.role === "output" ? "carry" : n.role)));
    const counts = {};
    for (const n of Object.values(nodes())) counts[n.role] = (counts[n.role] || 0) + 1;
    $("legend").replaceChildren(make("h3", { textContent: "Kinds of nodes" }), make("ul", {},
      ...Object.entries(ROLES).filter(([r]) => roles.has(r)).map(([r, text]) =>
        make("li", { className: r }, make("i"), text + (counts[r] ? " · " + counts[r] : ""))),
      make("li", {}, make("i", { className: "ring" }), "changed by this pass")));
  }

  // The whole region in small, with a frame around what the canvas shows; a click goes there.
  function showOverview(svg) {
    const small = svg.cloneNode(true);
    for (const g of small.querySelectorAll("text, title, .chip")) g.remove();
    for (const g of small.querySelectorAll("[data-n]")) {
      for (const name of ["tabindex", "role", "aria-label", "data-n"]) g.removeAttribute(name);
      if (g.classList.contains("changed")) g.querySelector(".hit").classList.add("mark");
    }
    const frame = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    frame.setAttribute("class", "seen");
    small.append(frame);
    small.removeAttribute("width");
    small.removeAttribute("height");
    $("overview").replaceChildren(small);
    const canvas = $("canvas");
    const { width, height } = svg.viewBox.baseVal;
    const follow = () => {
      const scale = width / svg.getBoundingClientRect().width;
      frame.setAttribute("x", canvas.scrollLeft * scale);
      frame.setAttribute("y", canvas.scrollTop * scale);
      frame.setAttribute("width", Math.min(width, canvas.clientWidth * scale));
      frame.setAttribute("height", Math.min(height, canvas.clientHeight * scale));
    };
    small.onpointerdown = small.onpointermove = (event) => {
      if (!event.buttons) return;
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(small.getScreenCTM().inverse());
      const scale = width / svg.getBoundingClientRect().width;
      canvas.scrollTo(point.x / scale - canvas.clientWidth / 2, point.y / scale - canvas.clientHeight / 2);
    };
    canvas.onscroll = onresize = follow;
    follow();
  }

  // Scrolls the canvas, never the page, which has the schedule above.
  function centre(group) {
    const canvas = $("canvas");
    const [box, frame] = [group.getBoundingClientRect(), canvas.getBoundingClientRect()];
    canvas.scrollBy(box.left + box.width / 2 - frame.left - frame.width / 2, box.top + box.height / 2 - frame.top - frame.height / 2);
  }

  function mark(focus) {
    const svg = $("canvas").querySelector("svg");
    for (const g of svg.querySelectorAll(".on, .near")) g.classList.remove("on", "near");
    for (const e of svg.querySelectorAll(".lit")) e.classList.remove("lit");
    svg.classList.toggle("chosen", Boolean(node));
    if (node) {
      for (const g of svg.querySelectorAll("[tabindex='0']")) g.tabIndex = -1;
      for (const g of groups(node)) { g.classList.add("on"); g.tabIndex = 0; }
      for (const other of [...nodes()[node].inputs, ...nodes()[node].users]) for (const g of groups(other)) g.classList.add("near");
      for (const e of svg.querySelectorAll(".e")) if (e.dataset.a === node || e.dataset.b === node) e.classList.add("lit");
      if (focus) focus.focus({ preventScroll: true });
    }
    details(node);
    remember();
  }

  function choose(name) {
    const [target] = groups(name);
    if (!target) return;
    node = name;
    mark(target);
    centre(target);
  }

  function row(label, now, was) {
    const cell = make("td");
    if (was !== undefined && was !== now) cell.append(make("span", { className: "was", textContent: was || "none" }), " ",
      make("span", { className: "now", textContent: now || "none" }));
    else cell.textContent = now;
    return make("tr", {}, make("th", { textContent: label, scope: "row" }), cell);
  }

  function links(title, list) {
    if (!list.length) return [];
    return [make("h3", { textContent: title }), make("div", { className: "links" }, ...list.map((name) => {
      const link = make("button", { type: "button", textContent: nodes()[name] ? name : name + " (gone)", disabled: !nodes()[name] });
      if (nodes()[name]) link.title = nodes()[name].value;
      link.onclick = () => choose(name);
      return link;
    }))];
  }

  function details(name) {
    const n = nodes()[name];
    const { changed, gone } = view();
    if (!n) {
      const calls = data.stages[stage].schedule.flat().filter(([r]) => r === region).length;
      const ops = Object.values(nodes()).filter((m) => ["aten", "word", "kernel"].includes(m.role)).length;
      $("details").replaceChildren(make("h2", { textContent: "region " + region }),
        make("p", { textContent: `${ops} ops, called ${calls === 1 ? "once" : calls + " times"} a step. ${data.stages[stage].doc}` }),
        ...links(`Changed by ${data.stages[stage].name}`, changed), ...links("Taken out", gone));
      return;
    }
    const old = stage > 0 && data.regions[region][stage - 1] ? nodes(stage - 1)[name] : n;
    const table = make("table", {}, row("op", n.op, old?.op), row("type", n.value || "nothing", old ? old.value || "nothing" : undefined));
    if (n.format || old?.format) table.append(row("format", n.format, old ? old.format : undefined));
    if (n.kernel || old?.kernel) table.append(row("kernel", n.kernel, old ? old.kernel : undefined));
    if (n.arguments) table.append(row(n.op === "input" ? "input" : "given", n.arguments));
    $("details").replaceChildren(make("h2", { textContent: name }), make("p", { textContent: ROLES[n.role] || n.role }), table,
      ...links("Comes from", n.inputs), ...links("Goes to", n.users));
  }

  function step(by) {
    const order = Object.keys(nodes()).filter((name) => groups(name).length);
    choose(order[Math.max(0, Math.min(order.length - 1, order.indexOf(node) + by))]);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, button, summary")) {
      if (!["[", "]", "n", "Escape"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    }
    const inGraph = $("canvas").contains(event.target);
    const here = nodes()[node];
    const { changed } = view();
    const actions = {
      "[": () => { stage = Math.max(0, stage - 1); show(); },
      "]": () => { stage = Math.min(data.stages.length - 1, stage + 1); show(); },
      n: () => { if (changed.length) choose(changed[(changed.indexOf(node) + 1) % changed.length]); },
      Escape: () => { node = ""; mark(null); },
    };
    if (inGraph) Object.assign(actions, {
      ArrowUp: () => { if (here?.inputs.length) choose(here.inputs[0]); },
      ArrowDown: () => { if (here?.users.length) choose(here.users[0]); },
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      Enter: () => { if (event.target.dataset.n) choose(event.target.dataset.n); },
    });
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });

  function show() {
    const focus = document.activeElement.id;
    const isInGraph = $("canvas").contains(document.activeElement);
    // a region that a pass brought is not there before it
    if (!view()) region = names.find((name) => data.regions[name][stage]);
    showStrip();
    showPasses();
    showGraph();
    mark(null);
    // what had the focus was made anew
    if (isInGraph && node) choose(node);
    else if (node) centre(groups(node)[0]);
    if (focus && !isInGraph) $(focus)?.focus();
  }

  $("theme").onclick = () => { theme = THEMES[(THEMES.indexOf(theme) + 1) % 3]; showTheme(); remember(); };
  prefersDark.addEventListener("change", showTheme);
  showTheme();
  show();
})();
