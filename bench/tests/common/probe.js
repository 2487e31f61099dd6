// Findings of a browser about a report, written into an attribute for a test that dumps the DOM.
(() => {
  const errors = [];
  addEventListener("error", (event) => errors.push(event.message || "a resource"), true);
  addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
  addEventListener("load", () => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const miscounted = [
      ...all("polyline").filter((line) => line.points.numberOfItems !== Number(line.dataset.points)),
      ...all("path[data-cells]").filter((path) =>
        path.getAttribute("d").split("M").length - 1 !== Number(path.dataset.cells)),
    ];
    const misplaced = all("polyline").filter((line) => [...line.points].some((point) => !(point.x >= 0 && point.y >= 0)));
    // Rounding may make a text touch the edge of its plot.
    const outside = all("svg text").filter((text) => {
      const [inner, outer] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
      return inner.left < outer.left - 1 || inner.right > outer.right + 1
        || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
    });
    const wide = all("main > *, figure, li, p").filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
    const light = (colour) => {
      const linear = colour.match(/[\d.]+/g).slice(0, 3).map((part) => {
        const share = part / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const style = getComputedStyle(document.body);
    const [ink, page] = [light(style.color), light(style.backgroundColor)];
    const told = (list) => list.map((one) => (one.textContent || one.outerHTML).slice(0, 80));
    document.documentElement.dataset.seen = JSON.stringify({
      figures: all("figure").length,
      lines: all("polyline").length,
      cells: all("path[data-cells]").length,
      unnamed: all("svg").filter((svg) => !svg.getAttribute("aria-label")).length,
      dark: page < 0.2,
      contrast: (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05),
      wrong: {
        errors,
        miscounted: told(miscounted),
        misplaced: told(misplaced),
        outside: told(outside),
        wide: told(wide),
        scrolls: document.documentElement.scrollWidth > innerWidth ? ["the page"] : [],
        fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
      },
    });
  });
})();
