/** The links that are busy longest; identical ones are one line. */

import type { JSX } from "preact";
import type { LinkJson } from "../document";
import { heat } from "../palette";
import { glows } from "../picture";
import { togglePin } from "../state";
import { pressable } from "../stops";
import { bytes, percent, seconds } from "../words";

export const LISTED = 8;

/** The share of the time in which a link is in use. */
export const use = (link: LinkJson, duration: number): number =>
  duration > 0 ? Math.min(1, link.seconds / duration) : 0;

/** Links that carry something, the busiest first; those of a kind that are equally busy together. */
export function alikeOf(links: LinkJson[]): LinkJson[][] {
  const groups = new Map<string, LinkJson[]>();
  for (const link of links) {
    if (!link.bytes) continue;
    const key = `${link.kind} ${link.bytes.toPrecision(9)} ${link.seconds.toPrecision(9)}`;
    groups.set(key, [...(groups.get(key) ?? []), link]);
  }
  return [...groups.values()].sort((a, b) => b[0].seconds - a[0].seconds);
}

/** `rank 0 out and 7 like it`. */
export const namesOf = (alike: LinkJson[]): string =>
  alike.length > 1 ? `${alike[0].name} and ${alike.length - 1} like it` : alike[0].name;

/** `512 KiB of 1.75 MiB`. */
export const carriedSoFar = (link: LinkJson, sofar: number): string =>
  sofar < link.bytes * (1 - 1e-9) ? `${bytes(sofar)} of ${bytes(link.bytes)}` : bytes(link.bytes);

export const inUse = (link: LinkJson, duration: number): string =>
  duration > 0 ? `, in use for ${percent(use(link, duration))} of the time` : "";

export function Busiest(props: { groups: LinkJson[][]; duration: number; sofar: Map<string, number> }): JSX.Element {
  const { groups, duration, sofar } = props;
  const shown = groups.slice(0, LISTED);
  const left = groups.slice(LISTED).flat().length;
  const most = Math.max(...shown.map(([link]) => link.seconds), 1e-30);
  return (
    <table class="busiest">
      <caption>The busiest links{left ? `; ${left} more are less busy` : ""}</caption>
      <tbody>
        {shown.map((alike) => {
          const [link] = alike;
          const focus = alike.length === 1 ? { link: link.name } : { links: alike.map((one) => one.name) };
          // Those of a kind that are equally busy in the end need not be so on the way: the farthest is shown.
          const done = Math.max(...alike.map((one) => sofar.get(one.name) ?? 0));
          const isLimit = duration > 0 && link.seconds >= most * (1 - 1e-9);
          return (
            <tr key={link.name} class={isLimit ? "is" : ""} {...glows(focus)} {...pressable(() => togglePin(focus))}>
              <th scope="row">{namesOf(alike)}</th>
              <td>
                <div class="bytes-bar" style={{ width: `${(100 * link.seconds) / most}%` }}>
                  <i
                    style={{
                      width: `${(100 * done) / link.bytes}%`,
                      background: heat(duration > 0 ? use(link, duration) : 0.5),
                    }}
                  />
                </div>
              </td>
              <td class="number">
                {carriedSoFar(link, done)}
                {alike.length > 1 && (done < link.bytes * (1 - 1e-9) ? " at most" : " each")}
              </td>
              <td class="number">{seconds(link.seconds)}</td>
              {duration > 0 && <td class="number">{percent(use(link, duration))}</td>}
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
