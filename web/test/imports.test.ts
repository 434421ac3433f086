/** How files import each other: never in a circle, and nothing is exported that no other file takes. */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import ts from "typescript";
import { expect, test } from "vitest";

const ROOT = resolve(import.meta.dirname, "..");

interface Import {
  from: string;
  /** The names that are taken; null for all of them. */
  names: string[] | null;
}

interface File {
  imports: Import[];
  exports: string[];
}

/** The file that a relative import names; null for packages and style sheets. */
function fileOf(specifier: ts.Expression, importer: string): string | null {
  const path = resolve(dirname(importer), (specifier as ts.StringLiteral).text);
  return [`${path}.ts`, `${path}.tsx`].find((one) => existsSync(one)) ?? null;
}

const namesIn = (list: ts.NamedImports | ts.NamedExports): string[] =>
  list.elements.map((one) => (one.propertyName ?? one.name).text);

/** The names in a declaration: one, or those of a list of variables. */
function declared(statement: ts.Statement): string[] {
  const list = ts.isVariableStatement(statement) ? statement.declarationList.declarations : [statement];
  return list.flatMap((one) => {
    const name = (one as ts.NamedDeclaration).name;
    return name && ts.isIdentifier(name) ? [name.text] : [];
  });
}

function read(path: string): File {
  const file: File = { imports: [], exports: [] };
  const source = ts.createSourceFile(path, readFileSync(path, "utf8"), ts.ScriptTarget.Latest);
  for (const statement of source.statements) {
    if (ts.isImportDeclaration(statement)) {
      const from = fileOf(statement.moduleSpecifier, path);
      const bindings = statement.importClause?.namedBindings;
      if (from) file.imports.push({ from, names: bindings && ts.isNamedImports(bindings) ? namesIn(bindings) : null });
    } else if (ts.isExportDeclaration(statement)) {
      const list = statement.exportClause;
      const names = list && ts.isNamedExports(list) ? namesIn(list) : null;
      const from = statement.moduleSpecifier && fileOf(statement.moduleSpecifier, path);
      if (from) file.imports.push({ from, names });
      if (list && ts.isNamedExports(list)) file.exports.push(...list.elements.map((one) => one.name.text));
    } else if (
      ts.canHaveModifiers(statement) &&
      ts.getModifiers(statement)?.some((one) => one.kind === ts.SyntaxKind.ExportKeyword)
    ) {
      file.exports.push(...declared(statement));
    }
  }
  return file;
}

const files = new Map<string, File>();
for (const folder of ["src", "test", "browser"])
  for (const name of readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" }))
    if (/\.tsx?$/.test(name)) files.set(join(ROOT, folder, name), read(join(ROOT, folder, name)));
const short = (path: string): string => relative(ROOT, path);

/** A way through imports from a file back to itself; types count, too, since a reader follows them like all others. */
function circleFrom(path: string, way: string[], done: Set<string>): string[] | null {
  if (way.includes(path)) return [...way.slice(way.indexOf(path)), path].map(short);
  if (done.has(path)) return null;
  for (const { from } of files.get(path)?.imports ?? []) {
    const found = circleFrom(from, [...way, path], done);
    if (found) return found;
  }
  done.add(path);
  return null;
}

test("no file imports itself, directly or through others", () => {
  const done = new Set<string>();
  expect(files.size).toBeGreaterThan(50);
  for (const path of files.keys()) expect(circleFrom(path, [], done)).toBeNull();
});

test("every export is imported somewhere", () => {
  const taken = new Set<string>();
  for (const { imports } of files.values())
    for (const { from, names } of imports)
      for (const name of names ?? files.get(from)?.exports ?? []) taken.add(`${short(from)} ${name}`);
  const all = [...files].flatMap(([path, file]) => file.exports.map((name) => `${short(path)} ${name}`));
  expect(all.filter((one) => !taken.has(one))).toEqual([]);
});
