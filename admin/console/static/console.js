"use strict";
// The map again and again, as the console renders it: what a cluster says is escaped there.
(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("state");
  if (!live || !state) return;
  const everyMs = Number(live.dataset.everyMs);
  const say = (text) => {
    if (state.textContent === text) return;
    state.textContent = text;
    state.hidden = !text;
  };

  const show = (text) => {
    const held = live.contains(document.activeElement) ? document.activeElement.id : "";
    const places = [...live.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
    live.innerHTML = text;
    live.querySelectorAll(".scroll").forEach((part, i) => { part.scrollLeft = places[i] || 0; });
    if (held) document.getElementById(held)?.focus({ preventScroll: true });
  };

  const turn = async () => {
    try {
      if (!document.hidden) {
        const answer = await fetch("/live", { cache: "no-store", signal: AbortSignal.timeout(15000) });
        if (answer.status === 401) return location.assign("/login");
        if (!answer.ok) throw new Error(String(answer.status));
        show(await answer.text());
        live.classList.remove("stale");
        say("");
      }
    } catch {
      live.classList.add("stale");
      say("The console does not answer: what you see is old.");
    }
    setTimeout(turn, everyMs);
  };
  setTimeout(turn, everyMs);
})();
