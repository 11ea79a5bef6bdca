// Tokens are buttons: the one that is pressed is marked here, so that the keyboard keeps its place, and told to the server.
const press = (button) => {
  element.querySelectorAll('[aria-pressed="true"]').forEach((other) => other.setAttribute('aria-pressed', 'false'));
  button.setAttribute('aria-pressed', 'true');
  trigger('select', { column: Number(button.dataset.column), token: Number(button.dataset.token) });
};
element.addEventListener('click', (event) => {
  const button = event.target.closest('button.token');
  if (button) press(button);
});
element.addEventListener('keydown', (event) => {
  const button = event.target.closest('button.token');
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!button || !step) return;
  const all = [...element.querySelectorAll('button.token')];
  const next = all[all.indexOf(button) + step];
  if (next) {
    event.preventDefault();
    next.focus();
  }
});
