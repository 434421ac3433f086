/** Syntax highlighting for Python; just enough of the language for algorithms. */

interface Word {
  kind: "plain" | "keyword" | "string" | "comment" | "number" | "name";
  text: string;
}

const KEYWORDS = new Set(
  "and as assert break class continue def elif else except False finally for from if import in is lambda None not or pass raise return True try while with yield".split(
    " ",
  ),
);
const TOKEN =
  /("""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|(#[^\n]*)|(\b\d[\w.]*)|(@?[A-Za-z_]\w*)/g;

/** The source line by line. A multi-line string is split at the ends of lines. */
export function inLines(source: string): Word[][] {
  const lines: Word[][] = [[]];
  const add = (kind: Word["kind"], text: string): void => {
    text.split("\n").forEach((part, i) => {
      if (i > 0) lines.push([]);
      if (part) lines[lines.length - 1].push({ kind, text: part });
    });
  };
  let reached = 0;
  let afterDef = false;
  for (const match of source.matchAll(TOKEN)) {
    add("plain", source.slice(reached, match.index));
    reached = match.index + match[0].length;
    const [text, string, comment, number, name] = match;
    if (string) add("string", text);
    else if (comment) add("comment", text);
    else if (number) add("number", text);
    else if (KEYWORDS.has(name)) add("keyword", text);
    else add(afterDef || name.startsWith("@") ? "name" : "plain", text);
    afterDef = name === "def";
  }
  add("plain", source.slice(reached));
  return lines;
}
