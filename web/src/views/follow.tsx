/** What is followed through the pictures: the limiting cut of the network, or one of the trees on which chunks travel. */

import type { JSX } from "preact";
import type { Cut, Entry } from "../document";
import { colourOf, inkOn } from "../palette";
import { Picture, Quiet, type Drawn } from "../picture";
import { nameRanks } from "../replay";
import { replayOf, treesOfEntry } from "../source";
import { go, pinned, state, togglePin } from "../state";
import { layOutTree, type Placed, type Tree } from "../trees";
import { bytes, listed, plural, rate, seconds } from "../words";

/** The tree that is followed, if the entry has it. */
export function followedTree(entry: Entry): Tree | null {
  const { follow } = state.value;
  return typeof follow === "number" ? (treesOfEntry(entry)[follow - 1] ?? null) : null;
}

/** The chunks that are followed: those of the followed tree, or the one that is kept in sight. */
export function followedChunks(entry: Entry): number[] | null {
  const chunk = pinned.value?.chunk;
  return followedTree(entry)?.chunks ?? (chunk === undefined ? null : [chunk]);
}

/** Follow a chunk through all views, or let go of it: the tree that carries it, or the chunk itself where it has none. */
export function followChunk(entry: Entry, chunk: number): void {
  const trees = treesOfEntry(entry);
  const at = trees.findIndex((tree) => tree.chunks.includes(chunk)) + 1;
  if (!at || trees.length < 2) togglePin({ chunk });
  else go({ follow: state.value.follow === at ? null : at });
}

export function followedCut(entry: Entry): Cut | null {
  return state.value.follow === "cut" ? (entry.cut ?? null) : null;
}

/** One tree further or back; around at the ends. */
export function followNext(entry: Entry, by: number): void {
  const many = treesOfEntry(entry).length;
  const { follow } = state.value;
  if (!many) return;
  const at = typeof follow === "number" ? follow - 1 + by : by > 0 ? 0 : many - 1;
  go({ follow: ((at + many) % many) + 1 });
}

export function Follow(props: { entry: Entry; cut?: boolean }): JSX.Element | null {
  const { entry } = props;
  const trees = treesOfEntry(entry);
  const { follow } = state.value;
  if (trees.length < 2 && !(props.cut && entry.cut)) return null;
  const tree = followedTree(entry);
  const single = trees.every((one) => one.carries === 1);
  const word = trees.every((one) => one.root !== null) ? "tree" : single ? "chunk" : "path";
  return (
    <div class="follow">
      <div class="chips" role="group" aria-label="Follow">
        <button type="button" aria-pressed={follow === null} onClick={() => go({ follow: null })}>
          everything
        </button>
        {props.cut && entry.cut && (
          <button type="button" aria-pressed={follow === "cut"} onClick={() => go({ follow: "cut" })}>
            the limiting cut
          </button>
        )}
        {trees.length > 1 && (
          <span class="trees">
            <Quiet aria-label={`Previous ${word}`} onClick={() => followNext(entry, -1)}>
              ◀
            </Quiet>
            <select
              aria-label={`One ${word}`}
              value={tree ? String(follow) : ""}
              onChange={(event) => go({ follow: event.currentTarget.value ? Number(event.currentTarget.value) : null })}
            >
              <option value="">{`one of ${plural(trees.length, word)}`}</option>
              {trees.map((one, i) => (
                <option key={i} value={String(i + 1)}>
                  {`${word} ${i + 1} of ${trees.length}${one.root === null ? `: chunk ${one.chunks[0]}` : `: root ${one.root}`}`}
                </option>
              ))}
            </select>
            <Quiet aria-label={`Next ${word}`} onClick={() => followNext(entry, 1)}>
              ▶
            </Quiet>
          </span>
        )}
      </div>
      {tree && <p class="followed">{treeSentence(entry, tree, `${word} ${follow} of ${trees.length}`)}</p>}
    </div>
  );
}

/** `Tree 3 of 48 spreads chunk 2 from rank 0: 1/48 of the buffer, 21.3 MiB, at 3.4 GB/s; 7 moves in steps 1 to 4.` */
function treeSentence(entry: Entry, tree: Tree, name: string): string {
  const { chunks } = entry.schedule;
  const took = entry.modelled?.seconds;
  const size = (tree.carries * state.value.size) / chunks;
  const steps = tree.branches.map((one) => one.step + 1);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const collects = tree.branches.some((one) => one.reduces);
  const spreads = tree.branches.some((one) => !one.reduces);
  const what = `${tree.carries === 1 ? "chunk" : "chunks"} ${listed(tree.chunks)}`;
  const way =
    tree.root === null
      ? `carries ${what}`
      : collects && spreads
        ? `collects ${what} at rank ${tree.root} and spreads it again`
        : collects
          ? `collects ${what} at rank ${tree.root}`
          : `spreads ${what} from rank ${tree.root}`;
  const speed = took ? `, at ${rate(size / took)}` : "";
  const when = first === last ? `in step ${first}` : `from step ${first} on`;
  const begun = name[0].toUpperCase() + name.slice(1);
  return `${begun} ${way}: ${tree.carries}/${chunks} of the buffer, ${bytes(size)}${speed}; ${plural(tree.branches.length, "branch", "branches")} ${when}.`;
}

/** What the cut means, in seconds, with what the schedule takes beside it. */
export function cutSentence(entry: Entry, cut: Cut): string {
  const cross = bytes(cut.share * state.value.size);
  const took = entry.modelled?.seconds;
  const ours = took ? ` This one is planned to take ${seconds(took)}.` : "";
  return `${cut.sentence[0].toUpperCase()}${cut.sentence.slice(1)}. ${cross} must cross them, so nothing is faster than ${seconds(cut.seconds)}.${ours}`;
}

/** The followed tree by itself, its root on top. */
export function TreePicture(props: { entry: Entry; step: number }): JSX.Element | null {
  const { entry, step } = props;
  const tree = followedTree(entry);
  if (!tree || tree.root === null) return null;
  const halves = [true, false].filter((reduces) => tree.branches.some((one) => one.reduces === reduces));
  return (
    <>
      {halves.map((reduces) => (
        <Picture
          key={String(reduces)}
          name={reduces ? "collecting" : "spreading"}
          caption={reduces ? "collecting" : "spreading"}
          label={`A tree with root ${tree.root} over ${nameRanks([...new Set(tree.branches.flatMap((one) => [one.source, one.destination]))])}`}
          draw={(width) => drawTree(tree, reduces, replayOf(entry).ranks, step, width)}
        />
      ))}
    </>
  );
}

function drawTree(tree: Tree, reduces: boolean, ranks: number, step: number, width: number): Drawn {
  const { ranks: placed, leaves, depth } = layOutTree(tree, reduces);
  const lies = depth > 2 * leaves; // a long path is drawn from left to right
  const along = lies ? Math.min(64, (width - 40) / Math.max(1, depth)) : Math.min(54, (width - 40) / leaves);
  const r = Math.max(4, Math.min(13, along * 0.32));
  const wide = lies ? depth * along : (leaves - 1) * along;
  const at = (one: Placed): { x: number; y: number } =>
    lies
      ? { x: (width - wide) / 2 + one.depth * along, y: 22 + one.across * 44 }
      : { x: (width - wide) / 2 + one.across * along, y: 22 + one.depth * 50 };
  const content = (
    <>
      {placed.map((one) => {
        if (!one.parent || !one.branch) return null;
        const [from, to] = [at(one.parent), at(one)];
        const when = one.branch.step < step - 1 ? "past" : one.branch.step === step - 1 ? "now" : "coming";
        return (
          <g key={one.rank}>
            <path
              class={`branch ${reduces ? "reduce" : "copy"} ${when}`}
              d={
                lies
                  ? `M${from.x} ${from.y}L${to.x} ${to.y}`
                  : `M${from.x} ${from.y}C${from.x} ${from.y + 26} ${to.x} ${to.y - 26} ${to.x} ${to.y}`
              }
            />
            {along > 26 && (
              <text
                class="tiny halo"
                x={(from.x + 3 * to.x) / 4}
                y={(from.y + 3 * to.y) / 4 - (lies ? 6 : 2)}
                text-anchor="middle"
              >
                {one.branch.step + 1}
              </text>
            )}
          </g>
        );
      })}
      {placed.map((one) => (
        <g key={one.rank}>
          <circle
            class={one.parent ? "rank" : "rank root"}
            cx={at(one).x}
            cy={at(one).y}
            r={r}
            fill={colourOf(one.rank, ranks)}
          />
          {r > 6 && (
            <text
              class="inside"
              style={{ fill: inkOn(colourOf(one.rank, ranks)) }}
              x={at(one).x}
              y={at(one).y}
              font-size={Math.max(8, r * 0.9)}
            >
              {one.rank}
            </text>
          )}
        </g>
      ))}
    </>
  );
  const height = 44 + (lies ? (leaves - 1) * 44 : depth * 50);
  return { width, height, content };
}
