// The front end of display/inspector.py: draws what Python sends, sends what the reader does. No library, no network.
// It computes no geometry: rectangles arrive as fractions of the image they lie on, and a drag leaves as pixels of the
// surface it was made on. Each part of the page is one function that makes its element and listens to its own trait.

const MARKS = {
  model: "model's crop",
  written: "box as the model wrote it",
  before: "what the model saw before",
  gold: "gold region",
  yours: "your crop",
};
const KINDS = { search: "Search", bbox: "Crop", answer: "Answer", invalid: "Invalid" };
const named = (kind) => KINDS[kind] ?? kind; // an action of one's own goes by its tag

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const button = (name, label, title, onclick) =>
  h("button", { class: `vrag-button ${name}`, type: "button", title, "aria-label": title, onclick }, label);
const badge = (name, text, title) => h("span", { class: `vrag-badge vrag-badge--${name}`, title }, text);
const times = (size) => `${size[0]} × ${size[1]} px`;
const box = (values) => `[${values.join(", ")}]`;
const covering = ([x0, y0, x1, y1]) =>
  `left:${x0 * 100}%;top:${y0 * 100}%;width:${(x1 - x0) * 100}%;height:${(y1 - y0) * 100}%`;
const isEmpty = (value) => !value || Object.keys(value).length === 0;

// PNG bytes as an address for an <img>, given back as soon as the image has loaded.
function source(image, bytes) {
  if (!bytes || !bytes.byteLength) return image.removeAttribute("src");
  const url = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  image.src = url;
}

// An <img> that follows a bytes trait.
function picture(model, trait, on, alt) {
  const image = h("img", { class: "vrag-image", draggable: "false", alt });
  const draw = () => source(image, model.get(trait));
  on(`change:${trait}`, draw);
  draw();
  return image;
}

function markElement(mark) {
  const inside = mark.box[1] < 0.08 ? " vrag-mark--label-inside" : "";
  return h(
    "div",
    { class: `vrag-mark vrag-mark--${mark.kind}${inside}`, style: covering(mark.box), title: MARKS[mark.kind] },
    h("span", { class: "vrag-mark-label" }, mark.label),
  );
}

// A picture one can drag a box on. `size()` gives the pixels it stands for, `marks()` what is drawn on it, `over` lies
// between the two.
function surface(model, on, { name, trait, alt, size, marks, redraw, over = [] }) {
  const image = picture(model, trait, on, alt);
  const layer = h("div", { class: "vrag-marks" });
  const rubber = h("div", { class: "vrag-rubber", hidden: true });
  const readout = h("div", { class: "vrag-readout", hidden: true });
  const element = h("div", { class: `vrag-surface vrag-surface--${name}` }, image, ...over, layer, rubber, readout);
  let start = null;

  const at = (event) => {
    const area = image.getBoundingClientRect();
    const clip = (value) => Math.min(Math.max(value, 0), 1);
    return [clip((event.clientX - area.left) / area.width), clip((event.clientY - area.top) / area.height)];
  };
  const dragged = (event) => {
    const [x, y] = at(event);
    return [Math.min(start[0], x), Math.min(start[1], y), Math.max(start[0], x), Math.max(start[1], y)];
  };
  const pixels = (part) => part.map((value, axis) => Math.round(value * size()[axis % 2]));
  const stop = () => {
    start = null;
    rubber.hidden = readout.hidden = true;
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !size()) return;
    event.preventDefault();
    element.closest(".vrag-inspector").focus({ preventScroll: true });
    element.setPointerCapture(event.pointerId);
    start = at(event);
  });
  element.addEventListener("pointermove", (event) => {
    if (!start) return;
    const part = dragged(event);
    rubber.style.cssText = covering(part);
    readout.textContent = `${box(pixels(part))} ${name === "page" ? "page px" : "shown px"}`;
    rubber.hidden = readout.hidden = false;
  });
  element.addEventListener("pointerup", (event) => {
    if (!start) return;
    const part = pixels(dragged(event));
    stop();
    if (part[2] - part[0] > 2 && part[3] - part[1] > 2) model.send({ kind: "box", surface: name, box: part });
  });
  element.addEventListener("pointercancel", stop);

  const draw = () => {
    element.hidden = !size();
    layer.replaceChildren(...marks().map(markElement));
  };
  for (const change of redraw) on(`change:${change}`, draw);
  draw();
  return element;
}

function trajectories(model, on) {
  const rows = h("div", { class: "vrag-rows", role: "listbox", "aria-label": "Trajectories", tabindex: "0" });
  const filter = h("input", {
    class: "vrag-input vrag-filter", type: "search", placeholder: "Filter questions and answers",
    "aria-label": "Filter trajectories", oninput: () => draw(),
  });
  const verdicts = h(
    "select",
    { class: "vrag-input vrag-verdicts", "aria-label": "Show which trajectories", onchange: () => draw() },
    ...["all", "correct", "wrong", "unanswered"].map((name) => h("option", { value: name }, name)),
  );
  const count = h("span", { class: "vrag-muted" });
  const wanted = {
    all: () => true, correct: (row) => row.correct === true, wrong: (row) => row.correct === false,
    unanswered: (row) => row.status !== "answered",
  };
  const chosen = () => {
    const words = filter.value.toLowerCase();
    return model.get("summaries").map((row, index) => ({ ...row, index }))
      .filter((row) => wanted[verdicts.value](row))
      .filter((row) => `${row.uid} ${row.question} ${row.answer} ${row.reference} ${row.type}`.toLowerCase().includes(words));
  };
  const pick = (index) => {
    model.set("trajectory_index", index);
    model.save_changes();
  };
  const draw = () => {
    const shown = chosen();
    count.textContent = `${shown.length} of ${model.get("summaries").length}`;
    rows.replaceChildren(...shown.map((row) => {
      const open = row.index === model.get("trajectory_index");
      return h(
        "div",
        { class: "vrag-row", role: "option", "aria-selected": String(open), "data-index": row.index, onclick: () => pick(row.index) },
        verdict(row), h("span", { class: "vrag-row-question" }, row.question),
        h("span", { class: "vrag-row-answer" }, row.answer ?? "no answer"),
        h("span", { class: "vrag-muted" }, row.reference ?? ""),
        h("span", { class: "vrag-muted vrag-number" }, `${row.turns} turn${row.turns === 1 ? "" : "s"}`),
      );
    }));
  };
  rows.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const shown = chosen();
    const place = shown.findIndex((row) => row.index === model.get("trajectory_index"));
    const next = shown[Math.min(Math.max(place + by, 0), shown.length - 1)];
    if (next) pick(next.index);
    rows.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  });
  on("change:summaries", draw);
  on("change:trajectory_index", draw);
  draw();
  const head = h("div", { class: "vrag-row vrag-row--head", "aria-hidden": "true" },
    ...["", "Question", "Answer", "Reference", ""].map((name) => h("span", {}, name)));
  return h("details", { class: "vrag-trajectories vrag-card", open: true },
    h("summary", { class: "vrag-summary" }, "Trajectories ", count),
    h("div", { class: "vrag-bar" }, filter, verdicts), head, rows);
}

const verdict = (row) =>
  row.status === "error" ? badge("wrong", "error", row.error)
    : row.correct === true ? badge("correct", "✓ correct", "the answer fits the reference")
    : row.correct === false ? badge("wrong", "✗ wrong", "the answer does not fit the reference")
    : badge("plain", "not judged", "there is no reference answer");

function question(model, on) {
  const element = h("header", { class: "vrag-question" });
  const draw = () => {
    const row = model.get("summaries")[model.get("trajectory_index")];
    if (!row) return element.replaceChildren();
    element.replaceChildren(
      h("h3", { class: "vrag-question-text" }, row.question),
      h("dl", { class: "vrag-facts" },
        h("div", {}, h("dt", {}, "Answer"), h("dd", { class: "vrag-answer" }, row.answer ?? "none", " ", verdict(row))),
        h("div", {}, h("dt", {}, "Reference"), h("dd", { class: "vrag-reference" }, row.reference ?? "none")),
        row.type ? h("div", {}, h("dt", {}, "Type"), h("dd", {}, row.type)) : null,
        row.policy ? h("div", {}, h("dt", {}, "Policy"), h("dd", {}, row.policy)) : null,
        h("div", {}, h("dt", {}, "Id"), h("dd", {}, row.uid))),
      row.error ? h("p", { class: "vrag-problem" }, row.error) : "",
    );
  };
  on("change:summaries", draw);
  on("change:trajectory_index", draw);
  draw();
  return element;
}

function stepper(model, on, go) {
  const steps = h("div", { class: "vrag-steps", role: "group", "aria-label": "Turns" });
  const slider = h("input", {
    class: "vrag-slider", type: "range", min: "0", step: "1", "aria-label": "Turn",
    oninput: () => go("turn_index", Number(slider.value)),
  });
  const previous = button("vrag-prev", "◀ Prev", "Previous turn (left arrow)", () => go("turn_index", model.get("turn_index") - 1));
  const next = button("vrag-next", "Next ▶", "Next turn (right arrow)", () => go("turn_index", model.get("turn_index") + 1));
  const place = h("span", { class: "vrag-place", "aria-live": "polite" });
  const draw = () => {
    const { kinds = [] } = model.get("turn");
    const index = model.get("turn_index");
    slider.max = String(Math.max(0, kinds.length - 1));
    slider.value = String(index);
    previous.disabled = index <= 0;
    next.disabled = index >= kinds.length - 1;
    place.textContent = kinds.length ? `Turn ${index + 1} of ${kinds.length}` : "No turns";
    steps.replaceChildren(...kinds.map((kind, turn) => h(
      "button",
      {
        class: `vrag-step vrag-step--${kind}`, type: "button", "aria-current": turn === index ? "step" : null,
        title: `Turn ${turn + 1}: ${named(kind)}`, onclick: () => go("turn_index", turn),
      },
      `${turn + 1} ${named(kind)}`,
    )));
  };
  on("change:turn", draw);
  on("change:turn_index", draw);
  draw();
  return h("nav", { class: "vrag-stepper" }, previous, slider, next, place, steps);
}

function words(model, on) {
  const element = h("section", { class: "vrag-words vrag-card", "aria-label": "Thought and action" });
  const action = (turn) => {
    if (turn.kind === "search") return [h("span", { class: "vrag-action-value" }, turn.query)];
    if (turn.kind === "answer") return [h("span", { class: "vrag-action-value" }, turn.answer)];
    const said = [turn.argument, turn.kind === "invalid" ? null : turn.query].filter(Boolean);
    const parts = said.map((text) => h("span", { class: "vrag-action-value" }, text));
    if (turn.box) parts.push(h("code", { class: "vrag-box-shown" }, box(turn.box)));
    if (turn.box && turn.frame) parts.push(h("span", { class: "vrag-muted" }, `of ${times(turn.frame)} shown`));
    if (turn.page_box) parts.push(h("code", { class: "vrag-box-page" }, box(turn.page_box)), h("span", { class: "vrag-muted" }, "page px"));
    if (turn.problem) parts.push(h("p", { class: "vrag-problem" }, turn.problem));
    return parts;
  };
  const draw = () => {
    const turn = model.get("turn");
    element.hidden = isEmpty(turn);
    if (element.hidden) return;
    const cost = [turn.new_tokens ? `${turn.new_tokens} tokens written` : "", turn.prompt_tokens ? `${turn.prompt_tokens} in the prompt` : "",
      turn.seconds ? `${turn.seconds} s` : ""].filter(Boolean).join(" · ");
    element.replaceChildren(
      h("h4", {}, "Thought", turn.forced ? badge("plain", "forced last turn", "the extra turn that asks for an answer") : null),
      h("p", { class: "vrag-thought" }, turn.thought || h("span", { class: "vrag-muted" }, "none")),
      h("h4", {}, "Action"),
      h("div", { class: "vrag-action" }, h("span", { class: `vrag-kind vrag-step--${turn.kind}` }, named(turn.kind)), ...action(turn)),
      ...turn.notices.map((text) => h("p", { class: "vrag-notice-text" }, "Told: ", text)),
      h("details", { class: "vrag-raw" }, h("summary", {}, "Text as written"), h("pre", {}, turn.text)),
      cost ? h("p", { class: "vrag-muted" }, cost) : "",
    );
  };
  on("change:turn", draw);
  draw();
  return element;
}

// The heat over the page, and frames around the patches that won a word.
function matchLayers(model, on) {
  const heat = h("div", { class: "vrag-heat" });
  const frames = h("div", { class: "vrag-cells" });
  let url = null;
  const paint = () => {
    const bytes = model.get("match_png");
    if (url) URL.revokeObjectURL(url);
    url = bytes && bytes.byteLength ? URL.createObjectURL(new Blob([bytes], { type: "image/png" })) : null;
    heat.style.backgroundImage = url ? `url("${url}")` : "none";
  };
  on("change:match_png", paint);
  paint();
  const draw = () => frames.replaceChildren(...(model.get("match").cells ?? []).map((cell) =>
    h("div", { class: "vrag-cell", style: covering(cell.box), title: `${cell.words}: adds ${cell.part.toFixed(2)}` })));
  on("change:match", draw);
  draw();
  return [heat, frames];
}

// The toggle of the matches, or why there is none; while they are shown, the words of the query to choose from.
function matchBar(model, on, busy) {
  const toggle = h("input", {
    type: "checkbox", class: "vrag-match-toggle",
    onchange: () => { busy(); model.set("show_match", toggle.checked); model.save_changes(); },
  });
  const label = h("label", { class: "vrag-legend-item", title: "Where the words of the search found their match (M)" }, toggle, "show matches");
  const problem = h("span", { class: "vrag-muted vrag-match-problem" });
  const words = h("span", { class: "vrag-bar vrag-match-words" });
  const element = h("div", { class: "vrag-bar vrag-matches" }, label, problem, words);
  const chip = (text, index, now, title) => h("button", {
    class: "vrag-chip", type: "button", "aria-pressed": String(index === now), title,
    onclick: () => { if (index !== now) { busy(); model.send({ kind: "word", word: index }); } },
  }, text);
  const draw = () => {
    const match = model.get("match");
    element.hidden = !model.get("hits").query || isEmpty(model.get("page"));
    toggle.checked = model.get("show_match");
    problem.textContent = model.get("match_problem");
    label.hidden = Boolean(problem.textContent);
    if (isEmpty(match)) return words.replaceChildren();
    const unit = match.word < 0 ? "what a patch adds to the score" : "cosine with the patch";
    words.replaceChildren(
      chip(`all ${match.score.toFixed(2)}`, -1, match.word, "What every patch adds to the score"),
      ...match.words.map((word, index) => chip(`${word.text} ${word.part.toFixed(2)}`, index, match.word,
        word.added ? "Tokens that the retriever adds to every query" : `Where “${word.text}” looks`)),
      h("span", { class: "vrag-muted vrag-match-scale" }, "0", h("i", { class: "vrag-ramp" }), `${match.greatest.toFixed(2)} ${unit}`));
  };
  for (const trait of ["match", "match_problem", "show_match", "hits", "page"]) on(`change:${trait}`, draw);
  draw();
  return element;
}

function pageCard(model, on) {
  const title = h("div", { class: "vrag-caption vrag-page-caption" });
  const legend = h("div", { class: "vrag-legend" });
  const marks = () => [...(model.get("page").marks ?? []), ...(model.get("own").page_marks ?? [])];
  const gold = h("input", {
    type: "checkbox", class: "vrag-gold-toggle",
    onchange: () => { model.set("show_gold", gold.checked); model.save_changes(); },
  });
  const draw = () => {
    const page = model.get("page");
    gold.checked = model.get("show_gold");
    title.replaceChildren(...(isEmpty(page) ? [h("span", { class: "vrag-muted" }, "No page has been looked at yet.")] : [
      h("strong", { class: "vrag-page-id" }, page.page_id), page.gold ? badge("gold", "★ gold page", "the answer is on this page") : "",
      h("span", { class: "vrag-muted" }, `${times(page.size)} on disk · whole page shown at ${times(page.shown_size)} = ${page.tokens} tokens`),
    ]));
    const kinds = [...new Set(marks().map((mark) => mark.kind))];
    legend.replaceChildren(
      ...kinds.map((kind) => h("span", { class: "vrag-legend-item" }, h("i", { class: `vrag-swatch vrag-mark--${kind}` }), MARKS[kind])),
      h("label", { class: "vrag-legend-item" }, gold, "show gold"));
  };
  for (const trait of ["page", "own", "show_gold"]) on(`change:${trait}`, draw);
  draw();
  const step = (by) => () => model.send({ kind: "step_page", by });
  const busy = () => card.setAttribute("aria-busy", "true");
  const card = h("section", { class: "vrag-page vrag-card", "aria-label": "Page" },
    h("div", { class: "vrag-card-head" }, h("h4", {}, "Page"), h("span", { class: "vrag-muted" }, "drag a box to crop"),
      h("span", { class: "vrag-spring" }), button("vrag-page-prev", "‹", "Previous page of the corpus", step(-1)),
      button("vrag-page-next", "›", "Next page of the corpus", step(1))),
    title,
    surface(model, on, {
      name: "page", trait: "page_png", alt: "Page with the model's and the gold boxes", size: () => model.get("page").size,
      marks, redraw: ["page", "own"], over: matchLayers(model, on),
    }),
    legend, matchBar(model, on, busy));
  for (const trait of ["match", "match_problem", "page", "notice"]) on(`change:${trait}`, () => card.removeAttribute("aria-busy"));
  return card;
}

function seenCard(model, on) {
  const caption = h("div", { class: "vrag-caption vrag-seen-caption" });
  const several = h("span", { class: "vrag-bar vrag-several" });
  const card = h("section", { class: "vrag-seen vrag-card", "aria-label": "As the model saw it" },
    h("div", { class: "vrag-card-head" }, h("h4", {}, "As the model saw it"), h("span", { class: "vrag-spring" }), several),
    caption,
    surface(model, on, {
      name: "seen", trait: "seen_png", alt: "The image exactly as the model saw it", size: () => model.get("seen").size,
      marks: () => model.get("seen").marks ?? [], redraw: ["seen"],
    }));
  const draw = () => {
    const seen = model.get("seen");
    card.hidden = isEmpty(model.get("turn"));
    caption.replaceChildren(...(isEmpty(seen) ? [h("span", { class: "vrag-muted" }, "No image yet.")] : [
      measures(seen, "vrag-seen"), seen.new ? "" : badge("plain", "from an earlier turn", "this turn brought no image")]));
    several.replaceChildren(...(seen.count > 1 ? [
      button("vrag-seen-prev", "‹", "Previous image of this turn", () => model.send({ kind: "seen", by: -1 })),
      h("span", {}, `${seen.place + 1} of ${seen.count}`),
      button("vrag-seen-next", "›", "Next image of this turn", () => model.send({ kind: "seen", by: 1 }))] : []));
  };
  on("change:seen", draw);
  on("change:turn", draw);
  draw();
  return card;
}

const measures = (view, name) => h("span", { class: `${name}-measures` },
  h("strong", { class: `${name}-size` }, times(view.size)), " = ", h("strong", { class: `${name}-tokens` }, `${view.tokens} tokens`),
  h("span", { class: "vrag-muted" }, ` · ${view.crop_box ? `crop ${box(view.crop_box)} page px` : "whole page"} · ${view.zoom}×`));

function ownCard(model, on) {
  const caption = h("div", { class: "vrag-caption vrag-own-caption", "aria-live": "polite" });
  const typed = h("input", { class: "vrag-input vrag-own-typed", type: "text", placeholder: "x1, y1, x2, y2", "aria-label": "Box in shown pixels or page pixels" });
  const frame = h("select", { class: "vrag-input vrag-own-frame", "aria-label": "What the box counts on" },
    h("option", { value: "page" }, "page px"), h("option", { value: "seen" }, "px as the model saw it"), h("option", { value: "own" }, "px of your crop"));
  const padding = h("input", {
    class: "vrag-input vrag-padding", type: "number", min: "0", step: "1", "aria-label": "Padding in shown pixels",
    onchange: () => { model.set("padding", Math.max(0, Number(padding.value) || 0)); model.save_changes(); },
  });
  const form = h("form", {
    class: "vrag-bar vrag-own-form",
    onsubmit: (event) => {
      event.preventDefault();
      const numbers = (typed.value.match(/-?\d+(\.\d+)?/g) ?? []).map(Number);
      if (numbers.length === 4) model.send({ kind: "box", surface: frame.value, box: numbers });
      else typed.setAttribute("aria-invalid", "true");
    },
    oninput: () => typed.removeAttribute("aria-invalid"),
  }, typed, frame, h("label", { class: "vrag-muted" }, "padding ", padding), h("button", { class: "vrag-button", type: "submit" }, "Crop"),
    button("vrag-clear", "Clear", "Forget your box (Esc)", () => model.send({ kind: "clear" })));
  const draw = () => {
    const own = model.get("own");
    padding.value = String(model.get("padding"));
    caption.replaceChildren(...(isEmpty(own)
      ? [h("span", { class: "vrag-muted" }, "Drag a box on the page, on the image the model saw, or on your own crop; or type one.")]
      : [measures(own, "vrag-own"), h("div", { class: "vrag-own-boxes" },
        h("code", { class: "vrag-own-written" }, `<bbox>${box(own.written)}</bbox>`), h("span", { class: "vrag-muted" }, `of ${times(own.frame)} shown`),
        h("code", { class: "vrag-own-page" }, box(own.page_box)), h("span", { class: "vrag-muted" }, "page px"))]));
  };
  on("change:own", draw);
  on("change:padding", draw);
  draw();
  return h("section", { class: "vrag-own vrag-card", "aria-label": "What the model would see" },
    h("div", { class: "vrag-card-head" }, h("h4", {}, "What the model would see of your box")), form, caption,
    surface(model, on, {
      name: "own", trait: "own_png", alt: "Your box as the model would see it", size: () => model.get("own").size,
      marks: () => model.get("own").marks ?? [], redraw: ["own"],
    }));
}

function hitsCard(model, on) {
  const title = h("span", { class: "vrag-hits-title" });
  const list = h("ol", { class: "vrag-hits-list" });
  const place = h("span", { class: "vrag-muted vrag-hits-place" });
  const turns = button("vrag-turn-hits", "Back to the turn's hits", "Show the hits of the model's own search", () => model.send({ kind: "turn_hits" }));
  const previous = button("vrag-hits-prev", "‹", "Better-ranked hits", () => model.send({ kind: "hits", by: -1 }));
  const next = button("vrag-hits-next", "›", "Further hits", () => model.send({ kind: "hits", by: 1 }));
  const query = h("input", { class: "vrag-input vrag-query", type: "search", placeholder: "Search the corpus", "aria-label": "Search the corpus" });
  const form = h("form", {
    class: "vrag-bar vrag-search",
    onsubmit: (event) => {
      event.preventDefault();
      const { own, query: last } = model.get("hits");
      if (!own || last !== query.value.trim()) card.setAttribute("aria-busy", "true");  // the same hits bring no change
      model.send({ kind: "search", query: query.value });
    },
  }, query, h("button", { class: "vrag-button", type: "submit" }, "Search"));
  const card = h("section", { class: "vrag-hits vrag-card", "aria-label": "Search hits" },
    h("div", { class: "vrag-card-head" }, h("h4", {}, "Search hits"), title, h("span", { class: "vrag-spring" }), turns, form, previous, place, next), list);
  const draw = () => {
    const hits = model.get("hits");
    card.removeAttribute("aria-busy");
    const { rows = [], first = 0, total = 0 } = hits;
    card.hidden = total === 0 && !model.get("can_search") && !hits.query;
    form.hidden = !model.get("can_search");
    turns.hidden = !hits.own || model.get("summaries").length === 0;
    title.textContent = hits.query ? `${hits.own ? "your search" : "searched"}: “${hits.query}”` : "";
    place.textContent = total ? `${first + 1}–${first + rows.length} of ${total}` : "no hits";
    previous.disabled = first === 0;
    next.disabled = first + rows.length >= total;
    const thumbnails = rows.map((row, index) => {
      const image = h("img", { alt: "", draggable: "false" });
      source(image, model.get("thumbnails")[index]);
      return image;
    });
    list.replaceChildren(...rows.map((row, index) => h("li", { class: "vrag-hit-item" }, h(
      "button",
      {
        class: `vrag-hit${row.gold ? " vrag-hit--gold" : ""}`, type: "button", "aria-pressed": String(row.open), "data-page-id": row.page_id,
        title: `Open ${row.page_id}`, onclick: () => model.send({ kind: "page", page_id: row.page_id }),
      },
      thumbnails[index],
      h("span", { class: "vrag-hit-name" }, `${row.rank}. ${row.page_id}`),
      h("span", { class: "vrag-hit-facts" }, h("span", { class: "vrag-score vrag-number" }, row.score.toFixed(3)),
        row.gold ? badge("gold", "★ gold", "gold page") : "", row.seen ? badge("plain", "shown", "the model was shown this page") : "")))));
  };
  for (const trait of ["hits", "thumbnails", "can_search"]) on(`change:${trait}`, draw);
  on("change:notice", () => card.removeAttribute("aria-busy"));
  draw();
  return card;
}

function render({ model, el }) {
  const listeners = [];
  const on = (event, handler) => {
    model.on(event, handler);
    listeners.push([event, handler]);
  };
  const go = (trait, value) => {
    const count = trait === "turn_index" ? (model.get("turn").kinds ?? []).length : model.get("summaries").length;
    if (value < 0 || value >= count) return;
    model.set(trait, value);
    model.save_changes();
  };
  const notice = h("p", { class: "vrag-notice vrag-problem", role: "alert" });
  const root = h("div", {
    class: "vrag-inspector", tabindex: "0", role: "group", "aria-label": "Trajectory inspector",
    "data-lm-suppress-shortcuts": "true",
  });
  root.append(
    trajectories(model, on), question(model, on), stepper(model, on, go), notice,
    h("div", { class: "vrag-columns" },
      h("div", { class: "vrag-side" }, pageCard(model, on), ownCard(model, on)),
      h("div", { class: "vrag-side" }, words(model, on), seenCard(model, on))),
    hitsCard(model, on));
  root.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea")) return event.stopPropagation(); // or the notebook eats Enter
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const trait = event.shiftKey ? "trajectory_index" : "turn_index";
    if (by) go(trait, model.get(trait) + by);
    else if (event.key === "g" || event.key === "G") {
      model.set("show_gold", !model.get("show_gold"));
      model.save_changes();
    } else if ((event.key === "m" || event.key === "M") && !model.get("match_problem")) {
      model.set("show_match", !model.get("show_match"));
      model.save_changes();
    } else if (event.key === "Escape") model.send({ kind: "clear" });
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const draw = () => {
    notice.textContent = model.get("notice");
    notice.hidden = !model.get("notice");
    root.classList.toggle("vrag-inspector--no-gold", !model.get("show_gold"));
    root.classList.toggle("vrag-inspector--pages-only", model.get("summaries").length === 0);
  };
  for (const trait of ["notice", "show_gold", "summaries"]) on(`change:${trait}`, draw);
  draw();
  el.append(root);
  return () => listeners.forEach(([event, handler]) => model.off(event, handler));
}

export default { render };
