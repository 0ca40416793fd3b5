// SPDX-License-Identifier: GPL-2.0-only
// Shows the chart of where the sliders of a box stand.
for (const box of document.querySelectorAll(".sliders")) {
  const sliders = [...box.querySelectorAll("input")];
  box.addEventListener("input", () => {
    for (const slider of sliders) {
      const value = slider.dataset.values.split("|")[slider.value];
      slider.setAttribute("aria-valuetext", value);
      slider.parentElement.querySelector("output").textContent = value;
    }
    const at = sliders.map(slider => slider.value).join(" ");
    for (const chart of box.querySelectorAll("[data-at]")) chart.hidden = chart.dataset.at !== at;
  });
}
