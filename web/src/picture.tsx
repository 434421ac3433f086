/** The frame of every picture: it knows its width, has a name for screen readers, and can be saved. */

import type { ButtonHTMLAttributes, ComponentChildren, HTMLAttributes, JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import type { Proof } from "./document";
import { paint, type Layer } from "./layers";
import { dark } from "./palette";
import { jumpTo, playing } from "./player";
import { keepStop, onKeyOfStops, stop } from "./stops";
import { go, hovered, state, togglePin, type Focus } from "./state";

/** Whether the text versions of pictures are visible; screen readers always get them. */
export const showText = signal(false);

export interface Drawn {
  width?: number;
  height: number;
  content: ComponentChildren;
  /** Lines on a canvas below the SVG. */
  layers?: Layer[];
}

/** An SVG as wide as its place, laid out in pixels, so that text keeps its size on every screen. */
export function Picture(props: {
  name: string;
  label: string;
  /** The heading of a saved picture, if the page shows it elsewhere. */
  caption?: string;
  draw: (width: number) => Drawn;
  least?: number;
  /** Told the width, at first and when it changes. */
  onWidth?: (width: number) => void;
  /** What the frame reacts to, if the picture can be moved or zoomed. */
  frame?: HTMLAttributes<HTMLDivElement>;
}): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  // Before anything is painted: a picture that comes is there in its first frame, and nothing below it jumps.
  useLayoutEffect(() => {
    const here = frame.current!; // a last observation may arrive when the frame is gone
    const measure = (): void => {
      setWidth(Math.floor(here.clientWidth));
      props.onWidth?.(Math.floor(here.clientWidth));
    };
    const watcher = new ResizeObserver(measure);
    watcher.observe(here);
    measure();
    return () => watcher.disconnect();
  }, []);
  const wanted = Math.max(width, props.least ?? 0);
  const drawn = width ? props.draw(wanted) : null;
  const goesOn = drawn !== null && (drawn.width ?? wanted) > width + 1;
  const canvas = useRef<HTMLCanvasElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const [layers, high] = [drawn?.layers, drawn?.height ?? 0];
  useLayoutEffect(() => {
    if (layers) paint(canvas.current!, svg.current!, layers, drawn!.width ?? wanted, high);
  }, [layers, wanted, high, dark.value]);
  useLayoutEffect(() => {
    if (svg.current) keepStop(svg.current);
  });
  return (
    <>
      <div class={goesOn ? "frame goes-on" : "frame"} ref={frame} tabIndex={goesOn ? 0 : undefined} {...props.frame}>
        {layers && (
          <canvas
            ref={canvas}
            class="layers"
            aria-hidden="true"
            // With its unit: a bare number is not taken, and the canvas would be as large as its pixels.
            style={{ width: `${drawn!.width ?? wanted}px`, height: `${high}px` }}
          />
        )}
        {drawn && (
          <svg
            ref={svg}
            class="picture"
            role="group"
            onKeyDown={onKeyOfStops}
            aria-label={props.label}
            data-name={props.name}
            data-caption={props.caption}
            width={drawn.width ?? wanted}
            height={drawn.height}
            viewBox={`0 0 ${drawn.width ?? wanted} ${drawn.height}`}
          >
            {drawn.content}
          </svg>
        )}
      </div>
      {goesOn && <p class="goes-on-hint">scroll sideways to see the rest →</p>}
    </>
  );
}

/** A label below its tick; at the right edge, before it, so that it stays in the picture. */
export function anchorOf(x: number, width: number): "middle" | "end" {
  return x > width - 26 ? "end" : "middle";
}

/** The same in words. Screen readers read it when it changes; it is visible when text is switched on. */
export function Twin(props: { lines: string[]; live?: boolean }): JSX.Element {
  return (
    <div class={showText.value ? "twin" : "twin unseen"} aria-live={props.live && !playing.value ? "polite" : "off"}>
      {props.lines.map((line, i) => (
        <p key={i}>{line}</p>
      ))}
    </div>
  );
}

/** One of some texts, in a place that is high enough for each of them: what lies below it does not jump. */
export function Steady(props: { texts: ComponentChildren[]; at: number; class: string }): JSX.Element {
  return (
    <div class={`steady ${props.class}`}>
      {props.texts.map((text, i) => (
        <div key={i} class={i === props.at ? "shown" : undefined} aria-hidden={i !== props.at}>
          {text}
        </div>
      ))}
    </div>
  );
}

/** What a sign in the picture means. */
export function Key(props: { sign: string; colour?: string; children: ComponentChildren }): JSX.Element {
  return (
    <span>
      <i class={props.sign} style={props.colour ? { background: props.colour } : undefined} /> {props.children}
    </span>
  );
}

/** What the ends of a scale of colours mean. */
export function Scale(props: { from: string; to: string; colours: string[] }): JSX.Element {
  return (
    <span class="scale">
      {props.from}
      <i class="ramp" style={{ background: `linear-gradient(90deg, ${props.colours.join(",")})` }} />
      {props.to}
    </span>
  );
}

/** A button that stays in the background. */
export function Quiet(props: ButtonHTMLAttributes<HTMLButtonElement>): JSX.Element {
  return <button type="button" class="quiet" {...props} />;
}

/** A link to the step at which a schedule goes wrong, unless it is already shown. */
export function ShowWhere(props: { proof: Proof; step: number }): JSX.Element | null {
  const at = (props.proof.step ?? -1) + 1;
  if (props.proof.ok || at === 0 || at === props.step) return null;
  return (
    <button type="button" onClick={() => jumpTo(at)}>
      Show where
    </button>
  );
}

/** What makes an element light up with others of its rank, chunk or link, wherever the pointer is. */
export function glows(focus: Focus): Record<string, unknown> {
  return {
    "data-r": focus.ranks?.length ? focus.ranks.join(" ") : undefined,
    "data-c": focus.chunk,
    "data-l": focus.link,
    onPointerEnter: () => (hovered.value = focus),
    onPointerLeave: () => (hovered.value = null),
  };
}

/** The same for what can also be clicked, and reached by keyboard: by default a click keeps it in sight. */
export function lights(focus: Focus, onClick: () => void = () => togglePin(focus)): Record<string, unknown> {
  return {
    ...glows(focus),
    ...stop(onClick),
    onFocus: (event: FocusEvent) => {
      if ((event.currentTarget as Element).matches(":focus-visible")) hovered.value = focus;
    },
    onBlur: () => (hovered.value = null),
  };
}

/** The rules that dim everything unrelated to the focus, or without one to the chunks that are followed: one style sheet for all views, nothing is redrawn. */
export function dimming(focus: Focus | null, chunks: number[] | null = null): string {
  if (!focus)
    return chunks
      ? `.picture[data-name="holds"] [data-c]${chunks.map((one) => `:not([data-c="${one}"])`).join("")}{opacity:.22}`
      : "";
  const rules: string[] = [];
  if (focus.ranks?.length) rules.push(`[data-r]${focus.ranks.map((rank) => `:not([data-r~="${rank}"])`).join("")}`);
  if (focus.chunk !== undefined) rules.push(`[data-c]:not([data-c="${focus.chunk}"])`);
  if (focus.links) rules.push(`[data-l]${focus.links.map((name) => `:not([data-l="${CSS.escape(name)}"])`).join("")}`);
  if (focus.link !== undefined) rules.push(`[data-l]:not([data-l="${CSS.escape(focus.link)}"])`);
  return rules.length ? `${rules.map((rule) => `.picture ${rule}`).join(",")}{opacity:.22}` : "";
}

export function openStep(step: number): void {
  if (state.value.step !== step) go({ step });
}
