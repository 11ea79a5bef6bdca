// The scene editor. `scene` is what the user wants to see; `props.value` is what the server has drawn and checked, and what is asked.
const one = (selector) => element.querySelector(selector);
const all = (selector) => Array.from(element.querySelectorAll(selector));
const canvas = one(".scene-canvas"), image = one(".scene-canvas img"), cross = one(".scene-cross"), frame = one(".scene-frame");
const place = one("[data-place]"), list = one(".scene-things"), find = one("[data-find]");
const STEP = 1 / 48, LEAP = 1 / 12, KEPT = 100;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

let scene = props.value.scene, past = [], lastChange = "";
let picked = null, brush = "", selected = -1, aim = { x: 0.5, y: 0.5 };
let wanted = null, busy = false, turn = 0, pointer = null;

const inside = (v) => Math.round(Math.min(1, Math.max(0, v)) * 1000) / 1000;
const say = (text) => { one(".scene-hint").textContent = text; };
const natural = (name) => all("[data-thing]").find((button) => button.dataset.thing === name).dataset.natural;
const nameOf = (thing) => (thing.name === "person" ? `person in ${thing.colour}` : `${thing.colour} ${thing.name}`);
const enable = (act, on) => one(`[data-act="${act}"]`).setAttribute("aria-disabled", String(!on));
const press = (button, on) => button.setAttribute("aria-pressed", String(on));

// --- showing ---

function show() {
  const thing = scene.things[selected];
  image.src = props.value.picture;
  image.alt = props.value.alt;
  const told = one("[data-alt]");
  if (told.textContent !== props.value.alt) told.textContent = props.value.alt;
  frame.hidden = !thing?.width; // its size comes from the server
  if (!frame.hidden) {
    frame.style.left = `${100 * (thing.x - thing.width / 2)}%`;
    frame.style.top = `${100 * (thing.y - thing.height / 2)}%`;
    frame.style.width = `${100 * thing.width}%`;
    frame.style.height = `${100 * thing.height}%`;
    frame.style.transform = `rotate(${thing.degrees}deg)`;
  }
  cross.style.left = `${100 * aim.x}%`;
  cross.style.top = `${100 * aim.y}%`;
  canvas.classList.toggle("scene-holding", Boolean(thing));
  showThings();
  showColours(thing);
  if (place.value !== scene.theme) place.value = scene.theme;
  sortPalette();
  enable("undo", past.length > 0);
  enable("clear", scene.things.length > 0);
  enable("remove", Boolean(thing));
}

function showThings() {
  while (list.children.length > scene.things.length) list.lastChild.remove();
  while (list.children.length < scene.things.length) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.index = list.children.length;
    list.appendChild(document.createElement("li")).appendChild(button);
  }
  scene.things.forEach((thing, index) => {
    const button = list.children[index].firstChild;
    button.textContent = nameOf(thing);
    press(button, index === selected);
  });
}

function showColours(thing) {
  const colour = thing ? thing.colour : brush;
  all("[data-colour]").forEach((button) => press(button, button.dataset.colour === colour));
  one("[data-whose]").textContent = thing ? `of the ${thing.name}: ${thing.colour}` : `of the next ${picked ?? "thing"}: ${brush || "usual"}`;
}

function sortPalette() {
  const usual = one("[data-usual]"), rest = one("[data-rest]"), here = props.places[scene.theme];
  if (usual.dataset.theme === scene.theme) return;
  usual.dataset.theme = scene.theme;
  const buttons = new Map(all("[data-thing]").map((button) => [button.dataset.thing, button]));
  [...buttons.keys()].sort().filter((name) => !here.things.includes(name)).forEach((name) => rest.append(buttons.get(name)));
  here.things.forEach((name) => usual.append(buttons.get(name)));
  one("[data-phrase]").textContent = `Usual in ${here.phrase}`;
  usual.setAttribute("aria-label", `Things usual in ${here.phrase}`);
  filter();
}

function filter() {
  const text = find.value.trim().toLowerCase();
  all("[data-thing]").forEach((button) => { button.hidden = !button.dataset.thing.includes(text); });
  for (const row of all(".scene-row")) row.previousElementSibling.hidden = row.hidden = !row.querySelector("[data-thing]:not([hidden])");
  one("[data-none]").hidden = Boolean(one("[data-thing]:not([hidden])"));
}

// --- changing ---

function change(next, what, chosen) {
  if (what !== lastChange || !what) past = [...past, scene].slice(-KEPT);
  lastChange = what;
  scene = next;
  selected = chosen;
  show();
  send();
}

async function send() {
  wanted = scene;
  if (busy) return;
  busy = true;
  canvas.setAttribute("aria-busy", "true");
  let drawn = false;
  while (wanted) {
    const sent = wanted, mine = turn;
    wanted = null;
    const answer = await ask("draw", sent);
    if (mine === turn) drawn = take(sent, answer); // else the page has opened another scene meanwhile
  }
  busy = false;
  canvas.setAttribute("aria-busy", "false");
  if (drawn) trigger("input");
}

async function ask(what, data) {
  const lost = { error: "The server does not answer: is it still running?" };
  try {
    const answer = await server[what](data);
    return answer?.scene || answer?.error ? answer : lost;
  } catch {
    return lost;
  }
}

function take(sent, answer) {
  if (answer.error) {
    scene = props.value.scene;
    wanted = null;
    selected = -1;
    say(answer.error);
  } else {
    props.value = answer;
    if (sent === scene) scene = answer.scene;
  }
  show();
  return !answer.error;
}

function withThing(index, fields) {
  return { ...scene, things: scene.things.map((thing, i) => (i === index ? { ...thing, ...fields } : thing)) };
}

function put(x, y) {
  if (!picked) return say("Choose a thing first, then click where it should stand.");
  if (scene.things.length >= props.most) return say(`A scene holds at most ${props.most} things: remove one first.`);
  const thing = { name: picked, colour: brush || natural(picked), x: inside(x), y: inside(y) };
  aim = { x: thing.x, y: thing.y };
  change({ ...scene, things: [...scene.things, thing] }, "", scene.things.length);
  say(`Here is the ${nameOf(thing)}: give it a colour, drag it, or move it with the arrow keys.`);
}

function select(index) {
  const thing = scene.things[index];
  selected = thing ? index : -1;
  lastChange = "";
  if (thing) aim = { x: thing.x, y: thing.y };
  say(thing ? `Selected: the ${nameOf(thing)}. Drag or arrow keys move it, a colour recolours it, Delete removes it.` : "");
  show();
}

function move(index, x, y) {
  aim = { x: inside(x), y: inside(y) };
  change(withThing(index, aim), `move ${index}`, index);
}

function remove() {
  const thing = scene.things[selected];
  if (!thing) return;
  const held = list.contains(document.activeElement) || document.activeElement?.dataset.act === "remove";
  change({ ...scene, things: scene.things.filter((_, index) => index !== selected) }, "", -1);
  say(`Removed: the ${nameOf(thing)}.`);
  if (held) canvas.focus();
}

function undo() {
  if (!past.length) return;
  scene = past.pop();
  selected = -1;
  lastChange = "";
  say("Undone.");
  show();
  send();
}

function clear() {
  if (!scene.things.length) return;
  change({ ...scene, things: [] }, "", -1);
  say("Cleared: choose a thing, then click where it should stand.");
}

async function surprise() {
  const answer = await ask("surprise", null);
  if (answer.error) return say(answer.error);
  change(answer.scene, "", -1);
  say("A scene of the pocket world, drawn at random.");
}

function paint(colour) {
  const thing = scene.things[selected];
  if (!thing) {
    brush = colour;
    return show();
  }
  change(withThing(selected, { colour: colour || natural(thing.name) }), "", selected);
  say(`Recoloured: the ${nameOf(scene.things[selected])}.`);
}

function pick(name) {
  picked = picked === name ? null : name;
  selected = -1;
  all("[data-thing]").forEach((button) => press(button, button.dataset.thing === picked));
  say(picked ? `Click where the ${picked} should stand, or aim with the arrow keys and press Enter.` : "");
  show();
  if (picked && canvas.getBoundingClientRect().bottom < 80) canvas.scrollIntoView({ block: "center" }); // on a phone
}

// --- the pointer and the keys ---

const acts = { undo, clear, surprise, remove };

function at(event) {
  const box = image.getBoundingClientRect();
  return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
}

function hit({ x, y }) {
  return scene.things.findLastIndex((t) => Math.abs(x - t.x) < (t.width ?? 0) / 2 && Math.abs(y - t.y) < (t.height ?? 0) / 2);
}

element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  if (button.dataset.act) acts[button.dataset.act]();
  else if (button.dataset.thing) pick(button.dataset.thing);
  else if (button.dataset.colour !== undefined) paint(button.dataset.colour);
  else if (button.dataset.index) select(Number(button.dataset.index) === selected ? -1 : Number(button.dataset.index));
});

element.addEventListener("change", (event) => {
  event.stopPropagation();
  if (event.target !== place) return;
  change({ ...scene, theme: place.value }, "", selected);
  say(`Now it is ${props.places[place.value].phrase}.`);
});

find.addEventListener("input", (event) => {
  event.stopPropagation();
  filter();
});

canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  const start = at(event), index = hit(start), thing = scene.things[index];
  cross.hidden = true;
  pointer = { start, index, moved: false, dx: thing ? thing.x - start.x : 0, dy: thing ? thing.y - start.y : 0 };
  if (!thing) return;
  canvas.setPointerCapture(event.pointerId);
  if (index !== selected) select(index);
});

canvas.addEventListener("pointermove", (event) => {
  if (!pointer) return;
  const { x, y } = at(event);
  pointer.moved ||= Math.hypot(x - pointer.start.x, y - pointer.start.y) > 0.015;
  if (pointer.moved && pointer.index >= 0) move(pointer.index, x + pointer.dx, y + pointer.dy);
});

canvas.addEventListener("pointerup", () => {
  const done = pointer;
  pointer = null;
  if (!done) return;
  if (done.index >= 0) lastChange = "";
  else if (picked || selected < 0) put(done.start.x, done.start.y);
  else select(-1);
});

canvas.addEventListener("pointercancel", () => { pointer = null; });
canvas.addEventListener("blur", () => { cross.hidden = true; });

canvas.addEventListener("keydown", (event) => {
  const arrow = ARROWS[event.key], far = event.shiftKey ? LEAP : STEP, thing = scene.things[selected];
  if (arrow) {
    cross.hidden = false;
    const x = aim.x + far * arrow[0], y = aim.y + far * arrow[1];
    if (thing) move(selected, x, y);
    else {
      aim = { x: inside(x), y: inside(y) };
      const under = scene.things[hit(aim)];
      say(under ? `Here is the ${nameOf(under)}: Enter selects it.` : picked ? `Enter puts the ${picked} here.` : "");
      show();
    }
  } else if (event.key === "Enter" || event.key === " ") {
    cross.hidden = false;
    if (thing) select(-1);
    else if (hit(aim) >= 0) select(hit(aim));
    else put(aim.x, aim.y);
  } else return;
  event.preventDefault();
});

element.addEventListener("keydown", (event) => {
  if (event.target === find) {
    if (event.key === "Enter") one("[data-thing]:not([hidden])")?.click();
    return;
  }
  if (event.key === "Delete" || event.key === "Backspace") remove();
  else if (event.key === "Escape") select(-1);
  else if (event.key === "z" && (event.ctrlKey || event.metaKey)) undo();
  else return;
  event.preventDefault();
});

// --- from the page: a case is opened, or the component comes back into view ---

watch("value", () => {
  if (JSON.stringify(props.value.scene) === JSON.stringify(scene)) return;
  past = [...past, scene].slice(-KEPT);
  lastChange = "";
  wanted = null;
  turn += 1;
  scene = props.value.scene;
  selected = -1;
  say("");
  show();
});

all("[data-thing] img").forEach((sprite) => { sprite.src = props.sprites[sprite.parentElement.dataset.thing]; });
say("Choose a thing, then click where it should stand.");
show();
