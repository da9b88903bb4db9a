"use strict";
// The picture of the network is moved, searched and colored, and its boxes open what a row of the table opens into.
(() => {
  const SVG_SPEED = 1.0015;

  function enhance(figure) {
    const svg = figure.querySelector(":scope > svg");
    const tools = figure.querySelector(".tools");
    const panel = figure.querySelector(".panel");
    const field = tools.querySelector("input");
    const found = tools.querySelector(".found");
    const boxes = [...svg.querySelector(".boxes").children];
    const lines = [...svg.querySelector(".lines").children];
    const titles = boxes.map((box) => box.querySelector("title").textContent);
    const searched = titles.map((title) => title.toLowerCase());
    const whole = svg.viewBox.baseVal;
    const all = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };
    let view = { ...all };
    let hits = [];
    let selected = null;

    // The view always has the proportions of its window, so that one scale serves both axes.
    const scale = () => svg.clientWidth / view.width;

    function look(x, y, width) {
      if (!svg.clientWidth || !svg.clientHeight) return; // it is not shown now
      const height = (width * svg.clientHeight) / svg.clientWidth;
      const left = Math.min(Math.max(x, all.x - width / 2), all.x + all.width - width / 2);
      const top = Math.min(Math.max(y, all.y - height / 2), all.y + all.height - height / 2);
      view = { x: left, y: top, width, height };
      svg.setAttribute("viewBox", `${left} ${top} ${width} ${height}`);
      svg.classList.toggle("far", scale() < 0.5);
      svg.classList.toggle("farther", scale() < 0.28);
    }

    function fit() {
      const width = Math.max(all.width, (all.height * svg.clientWidth) / svg.clientHeight);
      look(all.x - (width - all.width) / 2, all.y - ((width * svg.clientHeight) / svg.clientWidth - all.height) / 2, width);
    }

    function zoom(factor, x = svg.clientWidth / 2, y = svg.clientHeight / 2) {
      const widest = 1.3 * Math.max(all.width, (all.height * svg.clientWidth) / svg.clientHeight);
      const width = Math.min(Math.max(view.width / factor, 160), widest);
      const [atX, atY] = [view.x + x / scale(), view.y + y / scale()];
      look(atX - (x / svg.clientWidth) * width, atY - (y / svg.clientWidth) * width, width);
    }

    const pan = (x, y) => look(view.x - x / scale(), view.y - y / scale(), view.width);

    function center(at) {
      const { e, f } = boxes[at].transform.baseVal.consolidate().matrix;
      const width = Math.min(view.width, svg.clientWidth / 0.9);
      look(e + 74 - width / 2, f + 18 - (width * svg.clientHeight) / svg.clientWidth / 2, width);
    }

    const readers = (at) => (lines[at].dataset.to ? lines[at].dataset.to.split(" ").map(Number) : []);
    const sources = (at) => lines.map((_, from) => from).filter((from) => readers(from).includes(at));

    function select(at) {
      for (const each of svg.querySelectorAll(".lit, .near")) each.classList.remove("lit", "near");
      selected = at;
      panel.hidden = at === null;
      if (at === null) return;
      boxes[at].classList.add("lit");
      lines[at].classList.add("lit");
      for (const other of readers(at)) boxes[other].classList.add("near");
      for (const other of sources(at)) {
        boxes[other].classList.add("near");
        lines[other].classList.add("lit");
      }
      fill(at);
      // What was asked about must not lie behind the answer.
      const [box, over] = [boxes[at].getBoundingClientRect(), panel.getBoundingClientRect()];
      const covered = box.right - over.left + 24;
      if (covered > 0 && box.bottom > over.top && box.top < over.bottom) pan(-covered, 0);
    }

    function make(element, style, text) {
      const made = document.createElement(element);
      if (style) made.className = style;
      made.textContent = text;
      if (element === "button") made.type = "button";
      return made;
    }

    function fill(at) {
      const [name, ...about] = titles[at].split("\n");
      const close = make("button", "close", "×");
      close.setAttribute("aria-label", "Close");
      close.addEventListener("click", () => select(null));
      panel.replaceChildren(close, make("h3", "", name), make("p", "quiet", about.join(" · ")));
      const row = boxes[at].dataset.row;
      const opens = row && document.getElementById(`of-${row}`);
      if (opens) {
        panel.append(opens.content.cloneNode(true));
        const leads = make("button", "leads", "Show in the table");
        leads.addEventListener("click", () => {
          expand(false);
          document.dispatchEvent(new CustomEvent("reveal", { detail: row }));
        });
        panel.append(leads);
      }
      panel.scrollTop = 0;
    }

    function find() {
      const wanted = field.value.trim().toLowerCase();
      hits = [];
      boxes.forEach((box, at) => {
        const hit = wanted !== "" && searched[at].includes(wanted);
        box.classList.toggle("hit", hit);
        if (hit) hits.push(at);
      });
      svg.classList.toggle("finding", wanted !== "");
      found.textContent = wanted === "" ? "" : `${hits.length} of ${boxes.length}`;
    }

    function next(step) {
      if (!hits.length) return;
      const place = hits.indexOf(selected);
      const at = hits[(place + step + hits.length) % hits.length];
      select(at);
      center(at);
      found.textContent = `${hits.indexOf(at) + 1} of ${hits.length}`;
    }

    function expand(wanted) {
      const before = view;
      const [x, y] = [view.x + view.width / 2, view.y + view.height / 2];
      figure.classList.toggle("expanded", wanted);
      look(x - before.width / 2, y - (before.width * svg.clientHeight) / svg.clientWidth / 2, before.width);
    }

    function color(by) {
      figure.dataset.by = by;
      for (const each of tools.querySelectorAll("[data-by]")) each.setAttribute("aria-pressed", String(each.dataset.by === by));
    }

    const actions = {
      in: () => zoom(1.4),
      out: () => zoom(1 / 1.4),
      fit,
      expand: () => expand(!figure.classList.contains("expanded")),
    };
    tools.addEventListener("click", (event) => {
      const { by, do: action } = event.target.dataset;
      if (by) color(by);
      if (action) actions[action]();
    });
    field.addEventListener("input", find);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
    });

    svg.addEventListener(
      "wheel",
      (event) => {
        // The page scrolls as ever, unless the picture is all of it.
        if (!event.ctrlKey && !event.metaKey && !figure.classList.contains("expanded")) return;
        event.preventDefault();
        const box = svg.getBoundingClientRect();
        const lines_or_pixels = event.deltaMode === 1 ? 20 : 1;
        zoom(SVG_SPEED ** (-event.deltaY * lines_or_pixels), event.clientX - box.left, event.clientY - box.top);
      },
      { passive: false },
    );

    const fingers = new Map();
    let dragged = false;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      fingers.set(event.pointerId, event);
      dragged = fingers.size > 1;
    });
    svg.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const [x, y] = [event.clientX - before.clientX, event.clientY - before.clientY];
      if (!dragged && Math.hypot(x, y) < 4) return;
      if (!dragged) svg.setPointerCapture(event.pointerId);
      dragged = true;
      svg.classList.add("moved");
      const other = [...fingers.values()].find((each) => each.pointerId !== event.pointerId);
      fingers.set(event.pointerId, event);
      if (!other) return pan(x, y);
      const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
      const box = svg.getBoundingClientRect();
      const middle = [(event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top];
      pan(x / 2, y / 2);
      zoom(apart(event) / apart(before), ...middle);
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      svg.addEventListener(kind, (event) => {
        fingers.delete(event.pointerId);
        svg.classList.remove("moved");
      });
    }
    svg.addEventListener("click", (event) => {
      if (dragged) return;
      const box = event.target.closest(".boxes > g");
      select(box ? boxes.indexOf(box) : null);
    });
    svg.addEventListener("dblclick", (event) => {
      const box = svg.getBoundingClientRect();
      zoom(2, event.clientX - box.left, event.clientY - box.top);
    });

    // Arrows go from layer to layer if one is selected, and move the view if none is.
    const walk = (candidates) => {
      if (candidates.length) {
        select(candidates[0]);
        center(candidates[0]);
      }
    };
    const keys = {
      "+": actions.in,
      "-": actions.out,
      0: fit,
      ArrowDown: () => (selected === null ? pan(0, -80) : walk(readers(selected))),
      ArrowUp: () => (selected === null ? pan(0, 80) : walk(sources(selected))),
      ArrowLeft: () => pan(80, 0),
      ArrowRight: () => pan(-80, 0),
    };
    svg.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    figure.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      if (selected !== null) select(null);
      else expand(false);
    });

    tools.hidden = false;
    new ResizeObserver(() => look(view.x, view.y, view.width)).observe(svg);
    addEventListener("beforeprint", fit);
    fit();
  }

  for (const figure of document.querySelectorAll("figure.network")) enhance(figure);
})();
