// A click on a card, or Enter on it, tells which one it was. The list is replaced whenever it changes: only its frame listens.
element.addEventListener("click", (event) => {
  const card = event.target.closest("button.card");
  if (card && element.contains(card)) trigger("select", { ...card.dataset });
});
