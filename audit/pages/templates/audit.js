// Filters of the findings; without a script all rows are shown.
(() => {
  const form = document.getElementById("filters");
  if (!form) return;
  const rows = [...document.querySelectorAll("#findings tr[data-kind]")];
  const count = document.getElementById("count");
  const show = () => {
    const wanted = Object.fromEntries(new FormData(form));
    const text = wanted.text.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = ["severity", "kind", "replica", "topic"].every((name) => !wanted[name] || row.dataset[name] === wanted[name]);
      row.hidden = !(fits && row.textContent.toLowerCase().includes(text));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
})();
