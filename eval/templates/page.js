"use strict";
const SVG = "http://www.w3.org/2000/svg";
const DRAWN = ["svg", "rect", "line", "circle"];
const HEIGHT = 44;
const tip = document.getElementById("tip");

function element(name, attributes = {}, text = "") {
  const made = DRAWN.includes(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** A tree, a row of dots for each depth, from the parent of each node; node 0 is the root. */
function drawTree(parents) {
  const places = [{ y: 0, children: [] }];
  parents.forEach((parent, i) => {
    places.push({ y: places[parent].y + 1, children: [] });
    places[parent].children.push(i + 1);
  });
  let leaves = 0;
  (function place(row) {
    const own = places[row];
    own.children.forEach(place);
    own.x = own.children.length ? (places[own.children[0]].x + places[own.children.at(-1)].x) / 2 : leaves++;
  })(0);
  const [width, height] = [leaves, Math.max(...places.map((place) => place.y)) + 1].map((size) => 10 * size);
  const svg = element("svg", { width, height, viewBox: `-0.5 -0.5 ${width / 10} ${height / 10}`, role: "img" });
  parents.forEach((parent, i) => {
    const [from, to] = [places[parent], places[i + 1]];
    svg.append(element("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y }));
  });
  places.forEach(({ x, y }) => svg.append(element("circle", { cx: x, cy: y, r: 0.22 })));
  return svg;
}

/** One prompt's accept lengths as strips, and the text of one policy below, both coloured by tree. */
function drawTrace(root) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const select = root.querySelector("select");
  const strips = root.querySelector(".strips");
  const panel = root.querySelector(".text");
  let prompt, shown;

  function pieces(run) {
    let at = 0;
    return run.steps.map(([, , length]) => (length < 0 ? "" : prompt.texts[run.text].slice(at, (at += length))));
  }

  function drawStrip(run, k, tokens, deepest) {
    const button = element("button", { type: "button", class: "name", "aria-pressed": String(k === shown) }, run.policy);
    button.addEventListener("click", () => { shown = k; draw(); });
    const svg = element("svg", { viewBox: `0 0 ${tokens} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    let x = 0, microseconds = 0;
    run.steps.forEach(([tree, accepted, , time], i) => {
      const height = 3 + (HEIGHT - 4) * accepted / Math.max(1, deepest);
      svg.append(element("rect", {
        x, y: HEIGHT - height, width: accepted + 0.88, height, fill: data.trees[tree][1], "data-run": k, "data-step": i,
      }));
      x += accepted + 1;
      microseconds += time;
    });
    const rate = `τ ${(x / run.steps.length).toFixed(2)}, ${(1e6 * x / microseconds).toFixed(1)} tok/s`;
    svg.setAttribute("aria-label", `${run.policy}: ${run.steps.length} steps, ${rate}`);
    strips.append(button, svg, element("span", { class: "number" }, rate));
  }

  function drawText(run) {
    const text = prompt.texts[run.text];
    const parts = pieces(run);
    panel.replaceChildren();
    if (!parts.join("")) panel.append(text);
    else parts.forEach((part, i) => panel.append(element("span", {
      style: `--tree: ${data.trees[run.steps[i][0]][1]}`, "data-run": shown, "data-step": i,
    }, part)));
  }

  function draw() {
    prompt = data.prompts[select ? select.value : 0];
    shown = shown ?? prompt.runs.length - 1;
    const sums = prompt.runs.map((run) => run.steps.reduce((sum, step) => sum + step[1] + 1, 0));
    const deepest = Math.max(...prompt.runs.flatMap((run) => run.steps.map((step) => step[1])));
    strips.replaceChildren();
    prompt.runs.forEach((run, k) => drawStrip(run, k, Math.max(...sums), deepest));
    drawText(prompt.runs[shown]);
  }

  function mark(place) {
    root.querySelectorAll(".on").forEach((marked) => marked.classList.remove("on"));
    if (place) root.querySelectorAll(`[data-run="${place.run}"][data-step="${place.step}"]`).forEach((same) => same.classList.add("on"));
  }

  root.addEventListener("pointermove", (event) => {
    const place = event.target.dataset;
    mark(place.step && place);
    tip.hidden = !place.step;
    if (tip.hidden) return;
    const run = prompt.runs[place.run];
    const [tree, accepted, , microseconds, sizes, parents] = run.steps[place.step];
    const piece = pieces(run)[place.step];
    const built = sizes ? ` of ${sizes.join(" + ")} nodes` : "";
    tip.textContent = `step ${place.step}: ${data.trees[tree][0]}${built}\n${accepted} accepted, ${accepted + 1} tokens, ` +
      `${(microseconds / 1000).toFixed(1)} ms` + (piece ? `\n${JSON.stringify(piece)}` : "");
    if (sizes) tip.append(drawTree(parents));
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  });
  root.addEventListener("pointerleave", () => { mark(); tip.hidden = true; });
  if (select) select.addEventListener("change", draw);
  draw();
}

document.querySelectorAll(".trace").forEach(drawTrace);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
