// SPDX-License-Identifier: GPL-2.0-only
// One step of a story at a time: by buttons, arrow keys, and sliders over kernels and block sizes.
"use strict";

const controls = document.getElementById("controls");
const sliders = [...controls.querySelectorAll("input")];
const variants = [...document.querySelectorAll(".variant")];
const buttons = { previous: -1, next: 1 };
let step = 0;

// the reader's choice on other pages of the site
try {
    const theme = localStorage.getItem("theme");
    if (theme) document.documentElement.dataset.theme = theme;
} catch { /* there is no storage for a file */ }

function show() {
    const at = sliders.map((slider) => slider.value).join(",");
    for (const slider of sliders) {
        const value = slider.dataset.values.split("|")[slider.value];
        slider.setAttribute("aria-valuetext", value);
        slider.nextElementSibling.textContent = value;
    }
    for (const variant of variants) {
        variant.open = variant.dataset.at.split(" ").includes(at);
        variant.classList.toggle("now", variant.open);
    }
    const chosen = variants.find((variant) => variant.open);
    const steps = [...chosen.querySelectorAll(".step")];
    steps.forEach((one, number) => {
        one.classList.toggle("now", number === step);
        one.classList.toggle("before", number === step - 1);
    });
    const place = `${step + 1} of ${steps.length}`;
    document.getElementById("at").textContent = place;
    document.getElementById("same").textContent =
        `Shown: ${chosen.querySelector("summary").textContent}.`;
    document.getElementById("said").textContent = `Step ${place}. ` +
        `${steps[step].querySelector("h2").textContent.replace(/^\d+\. /, "")} ` +
        steps[step].querySelector(".crash").textContent;
    for (const [name, by] of Object.entries(buttons))
        document.getElementById(name).setAttribute("aria-disabled", !steps[step + by]);
}

function go(by) {
    const steps = variants[0].querySelectorAll(".step");
    step = Math.min(Math.max(step + by, 0), steps.length - 1);
    show();
}

for (const [name, by] of Object.entries(buttons))
    document.getElementById(name).addEventListener("click", () => go(by));
for (const slider of sliders) slider.addEventListener("input", show);
document.addEventListener("keydown", (event) => {
    // sliders, and pictures that are wider than the page, have arrow keys of their own
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, figure")) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) go(by);
});

document.documentElement.classList.add("live");
controls.hidden = false;
show();
