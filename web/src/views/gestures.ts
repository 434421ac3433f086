/** How space and time are moved and pointed at, by mouse, touch and keyboard. */

import type { HTMLAttributes } from "preact";
import { useRef } from "preact/hooks";
import type { Point } from "../svg";
import type { Frame } from "./lanes";
import { spanOf, whole, type Limits, type Window } from "./window";

const NEAR = 10; // pixels within which a line is pointed at; a finger is broader than a pointer
const NEAR_FINGER = 26;

interface Gestures {
  frame: { current: Frame | null };
  limits: Limits;
  show: (shown: Window) => void;
  point: (x: number, y: number, reach: number) => void;
  leave: () => void;
  open: () => void;
  zoom: (factor: number, at?: { time: number; rank: number }) => void;
  pan: (time: number, ranks: number) => void;
  next: (by: number) => void;
  /** Whether a drag selects; with Shift it always does. */
  selects: boolean;
  select: (one: Moment, other: Moment) => void;
  grow: (time: number, ranks: number) => void;
}

interface Moment {
  time: number;
  rank: number;
}

/** One pointer drags, or selects; two pinch; the wheel zooms with Ctrl, or when the picture has the focus. */
export function useGestures(act: Gestures): HTMLAttributes<HTMLDivElement> {
  const held = useRef(new Map<number, Point>()).current;
  const dragged = useRef(false);
  /** Where the selection began. */
  const corner = useRef<Moment | null>(null);
  const placeOf = (event: { clientX: number; clientY: number; currentTarget: EventTarget | null }): Point => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const momentAt = ({ x, y }: Point): Moment => {
    const frame = act.frame.current!;
    return { time: frame.timeAt(x), rank: frame.rankAt(y) };
  };
  const isOverview = (event: Event): boolean => (event.target as Element).closest(".overview") !== null;
  const move = (event: PointerEvent, before: Point, here: Point): void => {
    const frame = act.frame.current!;
    if (held.size === 2) {
      corner.current = null;
      const [other] = [...held].filter(([id]) => id !== event.pointerId).map(([, spot]) => spot);
      const far = (spot: Point): number => Math.hypot(spot.x - other.x, spot.y - other.y) || 1;
      act.zoom(far(here) / far(before), momentAt({ x: (here.x + other.x) / 2, y: (here.y + other.y) / 2 }));
    } else if (corner.current) {
      act.select(corner.current, momentAt(here));
    } else {
      act.pan(frame.timeAt(before.x) - frame.timeAt(here.x), frame.rankAt(before.y) - frame.rankAt(here.y));
    }
  };
  return {
    onPointerDown: (event: PointerEvent) => {
      if (isOverview(event) || event.button > 0) return;
      held.set(event.pointerId, placeOf(event));
      dragged.current = held.size > 1;
      corner.current = act.selects || event.shiftKey ? momentAt(placeOf(event)) : null;
    },
    onPointerMove: (event: PointerEvent) => {
      const here = placeOf(event);
      const before = held.get(event.pointerId);
      if (!before) {
        if (event.pointerType === "mouse") act.point(here.x, here.y, NEAR);
        return;
      }
      if (!dragged.current && Math.hypot(here.x - before.x, here.y - before.y) < 5) return;
      if (!dragged.current) (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
      dragged.current = true;
      move(event, before, here);
      held.set(event.pointerId, here);
    },
    onPointerUp: (event: PointerEvent) => {
      const here = placeOf(event);
      if (held.delete(event.pointerId) && !dragged.current) {
        act.point(here.x, here.y, event.pointerType === "mouse" ? NEAR : NEAR_FINGER);
        if (event.pointerType === "mouse") act.open();
      }
    },
    onPointerCancel: (event: PointerEvent) => void held.delete(event.pointerId),
    onPointerLeave: (event: PointerEvent) => event.pointerType === "mouse" && !held.size && act.leave(),
    onWheel: (event: WheelEvent) => {
      const frame = act.frame.current!;
      const focused = document.activeElement === event.currentTarget;
      if (event.ctrlKey || (focused && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX)))
        act.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), momentAt(placeOf(event)));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
        act.pan(((event.deltaX || event.deltaY) * spanOf(frame.shown)) / (frame.right - frame.left), 0);
      else return;
      event.preventDefault();
    },
    onKeyDown: (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const { shown } = act.frame.current!;
      const growing: Record<string, () => void> = {
        ArrowRight: () => act.grow(spanOf(shown) / 40, 0),
        ArrowLeft: () => act.grow(-spanOf(shown) / 40, 0),
        ArrowDown: () => act.grow(0, 1),
        ArrowUp: () => act.grow(0, -1),
      };
      const moving: Record<string, () => void> = {
        "+": () => act.zoom(1.6),
        "=": () => act.zoom(1.6),
        "-": () => act.zoom(1 / 1.6),
        "0": () => act.show(whole(act.limits)),
        ArrowDown: () => act.next(1),
        ArrowUp: () => act.next(-1),
        PageDown: () => act.pan(spanOf(act.frame.current!.shown) / 3, 0),
        PageUp: () => act.pan(-spanOf(act.frame.current!.shown) / 3, 0),
        Enter: () => act.open(),
      };
      const keys = event.shiftKey && growing[event.key] ? growing : moving;
      if (!keys[event.key]) return;
      keys[event.key]();
      event.preventDefault();
      event.stopPropagation();
    },
    onBlur: () => act.leave(),
  };
}
