"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const models = [];

  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");

  // Colours that depend on the theme are named in the tags of Bokeh's models.
  function paint() {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    for (const model of models) {
      for (const tag of model.tags) {
        const [name, variable] = tag.split("=");
        const glyph = name.startsWith("fill") || model.type === "Scatter";
        model[name] = glyph ? { value: color(variable) } : color(variable);
      }
    }
    const button = document.getElementById("theme");
    button.textContent = theme() === "dark" ? "Light theme" : "Dark theme";
    button.hidden = false;
  }

  // Dots appear as one zooms in, where the picture has no more to show.
  function fade(plot) {
    const picture = plot.renderers.find((renderer) => renderer.name === "picture");
    const dots = plot.renderers.find((renderer) => renderer.name === "dots");
    if (!picture) return;
    const range = plot.x_range;
    const full = range.end - range.start;
    range.on_change([range.properties.start, range.properties.end], () => {
      const zoom = Math.log2(full / Math.abs(range.end - range.start));
      const shown = Math.min(1, Math.max(0, (zoom - 0.5) / 2.5));
      dots.glyph.fill_alpha = { value: 0.9 * shown };
      dots.glyph.size = { value: 4 + 3 * shown };
      picture.glyph.global_alpha = { value: 1 - 0.6 * shown };
    });
  }

  async function draw() {
    const items = JSON.parse(document.getElementById("figures").textContent);
    for (const item of items) {
      const views = await Bokeh.embed.embed_item(item);
      const plot = views.roots ? views.roots[0].model : views[0].model;
      models.push(...[...plot.references()].filter((model) => model.tags && model.tags.length));
      if (item.target_id === "map") fade(plot);
    }
    paint();
    root.dataset.ready = "true";
  }

  function sort(table, column, header) {
    const up = header.getAttribute("aria-sort") === "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const value = (row) => Number(row.cells[column].dataset.value);
    const rows = [...body.rows].sort((a, b) => (up ? value(a) - value(b) : value(b) - value(a)));
    body.append(...rows);
  }

  for (const table of document.querySelectorAll(".sortable")) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = header.textContent;
      button.addEventListener("click", () => sort(table, column, header));
      header.replaceChildren(button);
    });
  }

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("spore-theme", root.dataset.theme); } catch {}
    paint();
  });
  dark.addEventListener("change", paint);
  draw();
})();
