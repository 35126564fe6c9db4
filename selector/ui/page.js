// The browser's side: names offered while typing, and the address that reopens the question.
(() => {
  const lists = {"field-model": "models", "field-gpus": "cards"};
  const offer = () => {
    for (const [field, list] of Object.entries(lists)) {
      const input = document.querySelector(`#${field} input`);
      if (input && input.getAttribute("list") !== list) input.setAttribute("list", list);
    }
  };
  new MutationObserver(offer).observe(document.documentElement, {childList: true, subtree: true});
  // Requests may overtake each other: whatever answers last must answer what the form holds now, else it is asked again.
  const text = (v) => v === true ? "yes" : v === false || v == null ? "" : Array.isArray(v) ? v.join(",") : String(v);
  const tries = {};
  const click = (id) => document.querySelector(`#${id}`)?.click();
  const settled = (button, made, now) => {
    const values = made ? JSON.parse(made) : [];
    const same = values.length === now.length && values.every((v, i) => v === text(now[i]));
    tries[button] = same ? 0 : (tries[button] || 0) + 1;
    if (!same && tries[button] < 20) click(button);
    return same;
  };
  window.advisorAnswered = (made, tab, lazy, ...now) => {
    if (!settled("ask-again", made, now)) return;
    if (lazy.split(",").includes(tab)) click("make-again");
    requestAnimationFrame(() => requestAnimationFrame(() => { document.body.dataset.ready = "yes"; }));
  };
  // an event that Gradio drops while it puts an answer into the page: look a moment after every touch of the form
  let later;
  for (const kind of ["input", "change", "click", "keyup"]) {
    document.addEventListener(kind, (event) => {
      if (!event.isTrusted || !event.target.closest?.("#form, #panel-explain, .options")) return;
      clearTimeout(later);
      later = setTimeout(() => click("look-again"), 300);
    }, true);
  }
  window.advisorMade = (made, ...now) => { settled("make-again", made, now); };
  window.advisorAsked = (asked) => {
    history.replaceState(null, "", asked ? `?${asked}` : window.location.pathname);
    const language = document.getElementById("language");
    if (language) language.href = language.dataset.base + (asked ? `?${asked}` : "");
  };
})();
