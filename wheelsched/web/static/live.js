// Reads the page again every few seconds and puts what is new in place. Without it every page is whole; it only has to be read again.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const button = document.getElementById("live");
  let on = localStorage.getItem("wheelsched-live") !== "off";
  const show = () => { button.setAttribute("aria-pressed", String(on)); button.textContent = on ? "Live" : "Paused"; };
  // Who types, selects or has opened something is not disturbed.
  const busy = () => {
    const main = document.getElementById("main");
    const focused = document.activeElement;
    const inside = focused !== null && main.contains(focused) && focused !== main;
    return document.hidden || inside || String(getSelection()) !== "" || main.querySelector("input[name=chosen]:checked") !== null
      || new URLSearchParams(location.search).has("after");
  };
  const look = async () => {
    if (!on || document.body.dataset.still === "yes" || busy()) { return; }
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", signal: AbortSignal.timeout(15000) });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (busy()) { return; }
      for (const id of ["main", "server"]) {
        const old = document.getElementById(id);
        const now = fresh.getElementById(id);
        if (old === null || now === null) { continue; }
        const kept = new Map();
        for (const box of old.querySelectorAll(".scroll")) { kept.set(box.getAttribute("aria-label"), box.scrollLeft); }
        if (id === "server") { now.querySelector("#live").replaceWith(button); }
        old.replaceWith(document.adoptNode(now));
        for (const box of now.querySelectorAll(".scroll")) { box.scrollLeft = kept.get(box.getAttribute("aria-label")) || 0; }
      }
      document.title = fresh.title;
      document.body.classList.remove("stale");
    } catch {
      document.body.classList.add("stale"); // the dashboard itself is gone: what is shown is old
    }
  };
  // A search that has found nothing so far goes on by itself.
  const further = document.querySelector("#main a[data-search=on]");
  if (further !== null) { location.replace(further.href); }
  button.hidden = false;
  show();
  button.addEventListener("click", () => { on = !on; localStorage.setItem("wheelsched-live", on ? "on" : "off"); show(); });
  setInterval(look, EVERY_MS);
})();
