/** Light or dark: what the system says, until the reader chooses. */

import type { JSX } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { dark } from "./palette";
import { Quiet } from "./picture";

let theme: "light" | "dark" | null = null;

function applyTheme(): void {
  dark.value = (theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
}

export function useTheme(): void {
  useLayoutEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    applyTheme();
    query.addEventListener("change", applyTheme);
    return () => query.removeEventListener("change", applyTheme);
  }, []);
}

export function ThemeButton(): JSX.Element {
  return (
    <Quiet onClick={() => (theme = dark.value ? "light" : "dark") && applyTheme()} aria-label="Light or dark">
      {dark.value ? "light" : "dark"}
    </Quiet>
  );
}
