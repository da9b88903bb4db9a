"use strict";
// Tables are sorted, searched and opened. Text is only ever read and compared, never turned into markup.
(() => {
  // What the rows of a large page open into is deflated; it is markup that the page was made with.
  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed.content.textContent), (each) => each.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    packed.outerHTML = await new Response(whole).text();
  }
  for (const packed of document.querySelectorAll("template.packed")) unpack(packed);

  const text = (cell) => cell.dataset.key ?? "";
  const places = new Intl.Collator(undefined, { numeric: true });

  const compare = (numeric) => (one, other) => {
    if (text(one) === "" || text(other) === "") return (text(one) === "") - (text(other) === "");
    if (!numeric) return places.compare(text(one), text(other));
    const [a, b] = [number(text(one)), number(text(other))];
    return a < b ? -1 : a > b ? 1 : 0;
  };

  const number = (key) => (key === "inf" ? Infinity : key === "-inf" ? -Infinity : Number(key));

  function enhance(box) {
    const body = box.querySelector("tbody");
    const rows = [...body.rows];
    const heads = [...box.querySelectorAll("th")];
    const few = Number(box.dataset.few);
    const more = box.querySelector(".more");
    const tools = box.querySelector(".tools");
    const field = tools && tools.querySelector("input");
    const found = tools && tools.querySelector(".found");
    const opened = new Map();
    let order = rows;
    let all = rows.length <= few + 3;

    function show() {
      const wanted = field ? field.value.trim().toLowerCase() : "";
      let shown = 0;
      let hits = 0;
      for (const row of order) {
        const hit = wanted === "" || row.textContent.toLowerCase().includes(wanted);
        hits += hit ? 1 : 0;
        row.hidden = !hit || (!all && wanted === "" && shown >= few && !opened.has(row));
        shown += row.hidden ? 0 : 1;
        if (opened.has(row)) opened.get(row).hidden = row.hidden;
      }
      more.hidden = all || wanted !== "";
      if (found) found.textContent = wanted === "" ? "" : `${hits} of ${rows.length}`;
    }

    function sort(head) {
      const at = heads.indexOf(head);
      const numeric = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      for (const each of heads) each.removeAttribute("aria-sort");
      const upwards = before !== "ascending";
      head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
      const by = compare(numeric || rows.every((row) => !Number.isNaN(number(text(row.cells[at])))));
      const full = rows.filter((row) => text(row.cells[at]) !== "");
      const empty = rows.filter((row) => text(row.cells[at]) === "");
      full.sort((one, other) => by(one.cells[at], other.cells[at]) * (upwards ? 1 : -1));
      order = [...full, ...empty];
      const whole = document.createDocumentFragment();
      for (const row of order) {
        whole.append(row);
        if (opened.has(row)) whole.append(opened.get(row));
      }
      body.append(whole);
      show();
    }

    function toggle(row, wanted) {
      const button = row.querySelector(".open");
      const open = wanted ?? !opened.has(row);
      const content = document.getElementById(`of-${row.dataset.opens}`);
      if (open === opened.has(row) || !content) return; // without it, it is being unpacked
      button.setAttribute("aria-expanded", String(open));
      row.classList.toggle("opened-row", open);
      if (!open) {
        opened.get(row).remove();
        opened.delete(row);
        return;
      }
      const below = document.createElement("tr");
      const cell = document.createElement("td");
      below.className = "below";
      cell.colSpan = heads.length;
      cell.append(content.content.cloneNode(true));
      below.append(cell);
      row.after(below);
      opened.set(row, below);
    }

    for (const head of heads) head.querySelector("button").addEventListener("click", () => sort(head));
    body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-opens]");
      if (row && !getSelection().toString()) toggle(row);
    });
    more.addEventListener("click", () => {
      all = true;
      show();
    });
    if (field) {
      tools.hidden = false;
      field.addEventListener("input", show);
    }
    show();

    // A dot of a chart leads to its row, which is shown even where it is not among the first few.
    return (name) => {
      const row = rows.find((each) => each.dataset.name === name);
      if (!row) return false;
      if (field) field.value = "";
      all = all || order.indexOf(row) >= few;
      show();
      if (row.dataset.opens) toggle(row, true);
      row.scrollIntoView({ block: "center" });
      row.classList.add("pointed");
      setTimeout(() => row.classList.remove("pointed"), 1600);
      return true;
    };
  }

  const reveal = [...document.querySelectorAll("div.table")].map(enhance);
  for (const dot of document.querySelectorAll("circle[data-opens]")) {
    dot.addEventListener("click", () => reveal.some((show) => show(dot.dataset.opens)));
  }
  document.addEventListener("reveal", (event) => reveal.some((show) => show(event.detail)));

  // A notebook shows the page in a frame, which is to be as high as what is in it.
  const frame = window.frameElement;
  if (frame && frame.srcdoc) {
    const page = document.documentElement;
    new ResizeObserver(() => { frame.style.height = `${Math.ceil(page.getBoundingClientRect().height)}px`; }).observe(page);
  }
})();
