"use strict";
// Says below a plot which spot is pointed at.
for (const kind of ["pointerover", "focusin", "click"]) {
  document.addEventListener(kind, (event) => {
    const label = event.target.tagName === "circle" && event.target.getAttribute("aria-label");
    if (label) document.getElementById("said").textContent = label;
  });
}
