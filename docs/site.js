// Predictions on the pages of lessons: a number to commit to, then its answer. Without JavaScript the answers unfold.
"use strict";

for (const place of document.querySelectorAll(".predict")) {
  const answer = place.querySelector("details");
  const form = document.createElement("form");
  const field = document.createElement("input");
  const button = document.createElement("button");
  const says = document.createElement("p");
  field.type = "number";
  field.step = "any";
  field.required = true;
  field.setAttribute("aria-label", "Your number");
  button.textContent = "commit";
  says.setAttribute("role", "status");
  form.append(field, button, says);
  answer.before(form);
  answer.hidden = true;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const right = Number(place.dataset.answer);
    const near = Math.abs(field.valueAsNumber - right) <= Math.max(Number(place.dataset.within), 1e-9) * Math.abs(right);
    place.dataset.right = String(near);
    says.textContent = near
      ? `✓ ${place.dataset.shown}, as you said.`
      : `≠ You said ${field.value}; it is ${place.dataset.shown}.`;
    answer.hidden = false;
    answer.open = true;
  });
}
