// Visits the console as a person would, in a real browser, and says what it saw: one line of JSON for each step that it
// reads on its standard input.

import { createInterface } from "node:readline";
import { readFileSync, mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const { KERA_LOGIN_NAME: username, KERA_LOGIN_PASSWORD: password } = process.env;
const profile = mkdtempSync(join(tmpdir(), "kera-console-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.KERA_CHROMIUM ?? "/usr/bin/chromium",
  headless: true,
  // Else the page's own rules keep the checks of accessibility out.
  bypassCSP: false,
  // Far from UTC: a time in one zone that is read in another one is found.
  timezoneId: "America/New_York",
  httpCredentials: username ? { username, password: password ?? "" } : undefined,
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
const page = context.pages()[0] ?? (await context.newPage());
const complaints = [];
let expected = false;
page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
page.on("console", (message) => {
  // That a broker which was killed does not answer is no defect of the page.
  if (message.type() === "error" && !expected) complaints.push(`console: ${message.text()}`);
});

const steps = {
  /** Opens an address. */
  async open({ url, width, height, theme }) {
    await page.setViewportSize({ width: width ?? 1600, height: height ?? 1000 });
    await page.emulateMedia({ colorScheme: theme ?? "light" });
    await page.goto(url);
    return {};
  },
  async size({ width, height, theme }) {
    await page.setViewportSize({ width, height });
    if (theme) await page.emulateMedia({ colorScheme: theme });
    return {};
  },
  /** Waits until a text is on the page; how long it took. */
  async text({ text, exact, within }) {
    const begin = Date.now();
    await page.getByText(text, { exact }).first().waitFor({ timeout: within ?? 20000 });
    return { ms: Date.now() - begin };
  },
  /** Waits until health tells a problem, first or in the list of all, which is unfolded then. */
  async problem({ text, within }) {
    const begin = Date.now();
    const health = page.locator("section.health");
    const told = health.getByText(text).first();
    await told.waitFor({ state: "attached", timeout: within ?? 20000 });
    if (!(await told.isVisible())) await health.locator("summary").click();
    await told.waitFor({ timeout: within ?? 20000 });
    return { ms: Date.now() - begin };
  },
  /** Waits until something with a role, as a screen reader tells it, has a name or a text. */
  async role({ role, name, text, within }) {
    const begin = Date.now();
    let found = page.getByRole(role, name === undefined ? {} : { name });
    if (text !== undefined) found = found.filter({ hasText: text });
    await found.first().waitFor({ timeout: within ?? 20000 });
    return { ms: Date.now() - begin };
  },
  /** Waits until a member has a range of ordinals. */
  async range({ within }) {
    const chips = page.locator("[data-head='Leased to'] .chip").filter({ hasText: /\d to [\d,]+/ });
    await chips.first().waitFor({ timeout: within });
    return {};
  },
  /** Waits until a member has a lane. */
  async leased({ lane, within }) {
    const row = page.getByRole("row").filter({ has: page.getByRole("rowheader", { name: lane, exact: true }) });
    await row.locator(".chip").first().waitFor({ timeout: within });
    return {};
  },
  /** The time of the first record, as it is shown. */
  async time() {
    return { time: (await page.locator("li.record time").first().innerText()).trim() };
  },
  /** From now on the answers of a path have other parts; without any: they are as the broker gave them. */
  async spoil({ path, parts }) {
    await page.unrouteAll();
    if (!parts) return {};
    const put = (into, from) => {
      for (const [name, part] of Object.entries(from)) {
        if (part !== null && typeof part === "object") put(into[name], part);
        else into[name] = part;
      }
    };
    await page.route((url) => url.pathname.endsWith(path), async (route) => {
      const json = await (await route.fetch()).json();
      put(json, parts);
      await route.fulfill({ json });
    });
    return {};
  },
  /** Unfolds the first record. */
  async unfold() {
    await page.locator("li.record summary").first().click();
    return {};
  },
  async gone({ text, exact, within }) {
    const begin = Date.now();
    await page.getByText(text, { exact }).first().waitFor({ state: "hidden", timeout: within ?? 20000 });
    return { ms: Date.now() - begin };
  },
  async click({ role, name }) {
    await page.getByRole(role, { name, exact: true }).first().click();
    return {};
  },
  async fill({ label, value }) {
    await page.getByLabel(label, { exact: true }).and(page.locator("input")).fill(value);
    return {};
  },
  async choose({ label, value }) {
    await page.getByRole("combobox", { name: label }).selectOption(value);
    return {};
  },
  /** Presses keys, one after the other; the text of what has the focus then. */
  async keys({ keys }) {
    for (const key of keys) await page.keyboard.press(key);
    const focused = await page.evaluate(() => (document.activeElement?.textContent ?? "").trim().slice(0, 80));
    return { focused };
  },
  async content() {
    return { content: await page.locator("body").innerText(), url: page.url() };
  },
  /** Rules of accessibility that the page breaks, of all or of these, and whether it is wider than the window. */
  async audit({ rules }) {
    const options = { resultTypes: ["violations"], ...(rules && { runOnly: rules }) };
    const violations = rules?.length === 0 ? [] : await page.evaluate(
      // The page's rules allow no other script; the debugger may run one all the same.
      `${axe}; axe.run(document, ${JSON.stringify(options)}).then((found) =>
        found.violations.map((one) => one.id + ": " + one.help + ": " + one.nodes.slice(0, 3).map((node) => node.html + " " + node.failureSummary).join(" | ")))`,
    );
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    // What reaches furthest beyond it.
    const widest = await page.evaluate(() => {
      const right = (one) => one.getBoundingClientRect().right;
      const all = [...document.querySelectorAll("body *")].filter((one) => right(one) > window.innerWidth);
      return all.sort((a, b) => right(b) - right(a))[0]?.outerHTML.slice(0, 300) ?? "";
    });
    // Where there is room no table hides columns behind its right edge.
    const hidden = await page.evaluate(() =>
      window.innerWidth < 1600 ? [] : [...document.querySelectorAll(".table")].filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.ariaLabel),
    );
    return { violations, wide, widest, hidden };
  },
  async picture({ path, full }) {
    // Where the data of this test lies is nobody's business.
    await page.evaluate(() => {
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        if (/^\/.*\/tmp\//.test(text.data)) text.data = "/var/lib/kera";
      }
    });
    await page.screenshot({ path, fullPage: full ?? false });
    return { bytes: readFileSync(path).length };
  },
  /** From now on errors in the console count, or do not. */
  async expect({ errors }) {
    expected = errors;
    return {};
  },
  async complaints() {
    return { complaints };
  },
};

const lines = createInterface({ input: process.stdin });
console.log(JSON.stringify({ ready: true }));
for await (const line of lines) {
  if (!line.trim()) continue;
  const { step, ...args } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ ok: true, ...(await steps[step](args)) }));
  } catch (error) {
    const content = await page.locator("body").innerText().catch(() => "");
    console.log(JSON.stringify({ ok: false, error: `${step}: ${error.message}`, content }));
  }
}
await context.close();
rmSync(profile, { recursive: true, force: true });
