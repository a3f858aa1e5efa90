/**
 * The page's thread is never blocked by the engine: with a real model on the CPU, its longest timer gap during load, prefill and
 * decode is within twice an idle page's, measured at the same time in the same browser, so that whatever else the machine does
 * strikes both. A stall of one round is the machine's; one of every round is the engine's: medians over rounds are compared, and
 * in doubt more rounds are run.
 */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { defaultModel } from "../../scripts/lib/model.mjs";
import { copyIn, openBrowser, openInstalled, openPage, serveFolder } from "./support.mjs";

const FACTOR = 2;
const ROUNDS = 3;
const MOST_ROUNDS = 15;
const PLANTED_MS = 200;
/** A few hundred tokens, so that a prefill is several steps long. */
const PROMPT = "The river runs past the mill, and the miller counts the sacks. ".repeat(16);

let work;
let browser;
let server;
let subject;
let idle;

before(async () => {
  work = await openInstalled();
  browser = await openBrowser();
  server = await serveFolder(copyIn(work, "tests/package/fixtures/plain"), { mounts: { "/model.gguf": await defaultModel() } });
  // Contexts of their own: processes of their own, so that neither page shares a thread with the other.
  [subject, idle] = await Promise.all([openPage(browser.browser, server.url), openPage(browser.browser, server.url)]);
  for (const { page } of [subject, idle]) {
    await page.waitForFunction(() => window.ready);
    await page.addScriptTag({ url: "gaps.js", type: "module" });
    await page.waitForFunction(() => window.lap);
  }
});

after(async () => {
  await browser?.close();
  server?.close();
  work?.close();
});

/** Longest gaps of both pages while `phase` ran in the first. */
async function during(phase, arg) {
  const laps = () => Promise.all([subject, idle].map(({ page }) => page.evaluate(() => window.lap())));
  await laps();
  await subject.page.evaluate(phase, arg);
  return laps();
}

const PHASES = {
  load: async () => {
    window.engine = await window.load();
  },
  prefill: async (prompt) => {
    let first;
    const begun = new Promise((resolve) => (first = resolve));
    const request = { prompt, max_tokens: 24, temperature: 0 };
    window.rest = window.engine.generate(request, { onToken: () => first() });
    await Promise.race([begun, window.rest]);
  },
  decode: async () => {
    const { usage } = await window.rest;
    if (usage.completion_tokens < 8) throw new Error("the decode was too short to say anything");
  },
};

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
/** The page's median over the idle page's. */
const ratio = (rounds) => median(rounds.map(([page]) => page)) / median(rounds.map(([, control]) => control));

test("load, prefill and decode leave the page's timers as they are in an idle page", { timeout: 3_600_000 }, async () => {
  const gaps = { load: [], prefill: [], decode: [] };
  const ratios = () => Object.entries(gaps).map(([name, rounds]) => [name, ratio(rounds)]);
  for (let round = 0; round < ROUNDS || (round < MOST_ROUNDS && ratios().some(([, r]) => r > FACTOR)); round++) {
    for (const [name, phase] of Object.entries(PHASES)) gaps[name].push(await during(phase, PROMPT));
    await subject.page.evaluate(() => window.engine.dispose());
  }
  for (const [name, rounds] of Object.entries(gaps)) {
    console.error(`${name}: ${rounds.map((pair) => pair.map((gap) => gap.toFixed(0)).join("/")).join(" ")} ms, page/idle page`);
  }
  for (const [name, r] of ratios()) assert.ok(r <= FACTOR, `${name}: the longest gap is ${r.toFixed(1)} times an idle page's`);
});

test("a page that does block is found out", { timeout: 1_200_000 }, async () => {
  const rounds = [];
  for (let round = 0; round < ROUNDS || (round < MOST_ROUNDS && ratio(rounds) <= FACTOR); round++) {
    // On a machine that stalls for long, a block must be longer still to be seen.
    const usual = rounds.length > 0 ? median(rounds.map(([, control]) => control)) : 0;
    rounds.push(
      await during(async (milliseconds) => {
        await new Promise((resolve) => setTimeout(resolve, 100));
        for (const end = performance.now() + milliseconds; performance.now() < end; );
        await new Promise((resolve) => setTimeout(resolve, 100));
      }, Math.max(PLANTED_MS, 4 * usual)),
    );
  }
  assert.ok(ratio(rounds) > FACTOR, JSON.stringify(rounds));
});
