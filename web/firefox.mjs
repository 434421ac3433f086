/**
 * The page and the site in Firefox: opened from disk, used as a reader would.
 *
 *     node firefox.mjs PAGE.html [SITE/index.html]
 *
 * Playwright drives only a Firefox of its own. This one speaks Marionette, the protocol of any Firefox: lengths and JSON over
 * a socket.
 */

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const PROGRAM = process.env.FIREFOX ?? "firefox-esr";
const STARTS = 60_000; // milliseconds
const PYTHON = 300_000; // for Python to load and to prove, perhaps on a busy machine

const freePort = () =>
  new Promise((found) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => found(port));
    });
  });

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

class Firefox {
  number = 0;
  waiting = new Map();
  rest = Buffer.alloc(0);

  static async start() {
    const one = new Firefox();
    one.profile = mkdtempSync(join(tmpdir(), "allfold-firefox-"));
    const port = await freePort();
    writeFileSync(join(one.profile, "user.js"), `user_pref("marionette.port", ${port});\n`);
    const given = ["--headless", "--marionette", "--no-remote", "--profile", one.profile];
    one.child = spawn(PROGRAM, given, { stdio: "ignore", env: { ...process.env, HOME: one.profile } });
    one.child.on("error", (error) => {
      console.error(`${PROGRAM} does not start: ${error.message}`);
      process.exit(2);
    });
    const since = Date.now();
    for (;;) {
      try {
        await one.connect(port);
        break;
      } catch (error) {
        if (Date.now() - since > STARTS) throw error;
        await pause(200);
      }
    }
    const { capabilities } = await one.send("WebDriver:NewSession", { capabilities: {} });
    one.version = capabilities.browserVersion;
    return one;
  }

  connect(port) {
    return new Promise((done, failed) => {
      const socket = connect(port, "127.0.0.1");
      socket.once("error", failed);
      socket.on("data", (bytes) => {
        this.rest = Buffer.concat([this.rest, bytes]);
        for (let message = this.take(); message; message = this.take()) {
          if (!Array.isArray(message)) {
            this.socket = socket;
            done();
            continue;
          }
          const [, number, error, result] = message;
          const { answer, refuse } = this.waiting.get(number);
          this.waiting.delete(number);
          if (error) refuse(new Error(`${error.error}: ${error.message}`));
          else answer(result);
        }
      });
    });
  }

  /** The next whole message; null until it is there. */
  take() {
    const colon = this.rest.indexOf(":");
    if (colon < 0) return null;
    const end = colon + 1 + Number(this.rest.subarray(0, colon));
    if (this.rest.length < end) return null;
    const message = JSON.parse(this.rest.subarray(colon + 1, end).toString());
    this.rest = this.rest.subarray(end);
    return message;
  }

  send(name, parameters = {}) {
    const number = ++this.number;
    const text = Buffer.from(JSON.stringify([0, number, name, parameters]));
    this.socket.write(Buffer.concat([Buffer.from(`${text.length}:`), text]));
    return new Promise((answer, refuse) => this.waiting.set(number, { answer, refuse }));
  }

  async open(address) {
    await this.send("WebDriver:Navigate", { url: "about:blank" });
    await this.send("WebDriver:Navigate", { url: address });
  }

  /** The value of a function's body in the page. */
  async run(body, ...given) {
    const { value } = await this.send("WebDriver:ExecuteScript", { script: body, args: given });
    return value;
  }

  /** Wait until a function's body is true in the page. */
  async until(says, body, limit = 20_000) {
    const since = Date.now();
    while (!(await this.run(body))) {
      if (Date.now() - since > limit) {
        const shown = await this.run("return document.querySelector('#allfold')?.innerText.slice(0, 2000)");
        throw new Error(`waited in vain until ${says}; the page says:\n${shown}`);
      }
      await pause(100);
    }
    console.log(`  ${says}`);
  }

  /** A key for the page. */
  press(key) {
    return this.run(
      "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0], bubbles: true }))",
      key,
    );
  }

  async stop() {
    const ended = new Promise((done) => this.child.once("exit", done));
    await this.send("Marionette:Quit", { flags: ["eForceQuit"] }).catch(() => undefined);
    const late = setTimeout(() => this.child.kill("SIGKILL"), 10_000);
    await ended;
    clearTimeout(late);
    rmSync(this.profile, { recursive: true, force: true });
  }
}

const VIEWS = ["holds", "time", "bytes", "race", "wins"];

async function readPage(firefox, file) {
  const address = pathToFileURL(resolve(file)).href;
  for (const view of VIEWS) {
    await firefox.open(`${address}#view=${view}&step=2`);
    await firefox.until(
      `${view} is drawn`,
      `const svg = document.querySelector("#view-${view} svg.picture"); return svg !== null && svg.querySelectorAll("*").length > 10`,
    );
    const canvas = await firefox.run(
      `return [...document.querySelectorAll("#view-${view} .frame")].every((frame) => {
        const [one, other] = [frame.querySelector("canvas.layers"), frame.querySelector("svg.picture")];
        if (!one || !other) return true;
        const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
        return Math.abs(a.width - b.width) < 1 && Math.abs(a.left - b.left) < 1 && Math.abs(a.top - b.top) < 1;
      })`,
    );
    if (!canvas) throw new Error(`${view}: the lines on the canvas do not lie where their picture is`);
  }
  await firefox.open(`${address}#view=holds`);
  await firefox.until("the page is there", "return document.querySelector('.where')?.innerText === 'start'");
  await firefox.press("ArrowRight");
  await firefox.until("a number travels", "return document.querySelectorAll('.travel .tile').length > 0");
  await firefox.press("End");
  await firefox.until(
    "every cell is as promised at the end",
    "const [right, all] = document.querySelector('.progress').innerText.match(/\\d+/g); return right === all",
  );
}

/** Typed into a field of the page, as its own listeners see it. */
const TYPE = `
  const [label, text] = arguments;
  const field = document.querySelector("textarea[aria-label='" + label + "']");
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(field, text(field.value));
  field.dispatchEvent(new Event("input", { bubbles: true }));
`;

async function useSite(firefox, file) {
  await firefox.open(pathToFileURL(resolve(file)).href);
  const lights = (kind) => `return document.querySelectorAll(".lights .${kind}").length`;
  await firefox.until("the first code is proved", `${lights("right")} === 17`);
  const type = (change) => firefox.run(TYPE.replace("text(field.value)", change), "Source of the algorithm", "");
  const since = Date.now();
  await type("field.value.replace('(r - step) % ranks', '(r - step + 1) % ranks')");
  await firefox.until(
    "a wrong edit is refuted by Python in the page",
    "return /around\\.py:/.test(document.querySelector('.beside .alarm')?.innerText ?? '')",
    PYTHON,
  );
  console.log(`  the first answer took ${((Date.now() - since) / 1000).toFixed(1)} s`);
  await type("field.value.replace('(r - step + 1) % ranks', '(r - step) % ranks') + '# mine\\n'");
  await firefox.until("the repaired code is proved for 1 to 17 ranks", `${lights("right")} === 17`, PYTHON);
  await firefox.until("the address holds the code", "return location.hash.includes('code=')");
}

const [page, site] = process.argv.slice(2);
const firefox = await Firefox.start();
console.log(`Firefox ${firefox.version}`);
try {
  if (page) await readPage(firefox, page);
  if (site) await useSite(firefox, site);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  await firefox.stop();
}
