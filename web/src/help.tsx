/** The keys, and how the page is meant to be used. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { VIEWS } from "./views/table";

const KEYS: [string, string][] = [
  ["space", "play and pause"],
  ["← →", "one step back, one step forward; five with shift"],
  ["home end", "to the start, to the end"],
  ...VIEWS.map(({ key, title, summary }): [string, string] => [key, `${title}: ${summary}`]),
  ["[ ]", "follow the previous tree, the next tree"],
  ...keysOfViews(true).map(({ key, says }): [string, string] => [key, says]),
  ["tab", "to the next picture or control; arrows then move from cell to cell, enter selects"],
  ...keysOfViews(false).map(({ key, says, title }): [string, string] => [
    key,
    `${title.toLowerCase()}, when it has the focus: ${says}`,
  ]),
  ["/", "search: rank 7 chunk 3, step 4, > 50 µs"],
  ["esc", "clear the selection"],
  ["?", "this help"],
];

/** The further keys of the views: those that work everywhere, or those of their pictures. */
function keysOfViews(everywhere: boolean): { key: string; says: string; title: string }[] {
  return VIEWS.flatMap(({ title, keys = [] }) =>
    keys.filter((one) => (one.press !== undefined) === everywhere).map(({ key, says }) => ({ key, says, title })),
  );
}

export function Help(props: { onClose: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current!.showModal();
    dialog.current!.scrollTop = 0; // the button at its end has the focus
  }, []);
  return (
    <dialog
      class="help"
      ref={dialog}
      onClose={props.onClose}
      onClick={(event) => event.target === dialog.current && dialog.current!.close()}
    >
      <div>
        <h2>Keys</h2>
        <dl>
          {KEYS.map(([key, what]) => (
            <div key={key}>
              <dt>
                {key.split(" ").map((one) => (
                  <kbd key={one}>{one}</kbd>
                ))}
              </dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
        <p>
          Point at a rank, a chunk or a link: it stays bright in every view while the rest fades. Click to keep it
          selected. Click a cell of the grid to see where its parts came from. The page’s address describes what you
          see, so you can share it.
        </p>
        <form method="dialog">
          <button>Close</button>
        </form>
      </div>
    </dialog>
  );
}
