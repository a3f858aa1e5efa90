/** Pages that are left, come back from the back- and forward-cache, freeze and end: what ran goes on, nobody waits for who is gone. */
import assert from "node:assert/strict";
import crypto from "node:crypto";
import fs from "node:fs";
import { after, before, test } from "node:test";
import { gpuProcesses } from "../../scripts/lib/proc.mjs";
import { faultyFiles } from "./faults.mjs";
import { openPage, TINY } from "./support.mjs";
import { hiddenTabs } from "../tools/devtools.mjs";
import { bigGguf } from "../tools/gguf.mjs";
import { tuning } from "../tools/tuning.mjs";

const MB = 1_000_000;
const data = fs.readFileSync(TINY);
const files = faultyFiles();
/** Reasons for which a browser drops a page that is none of the page's doing. */
const NOT_OURS = ["masked", "timeout", "cache-limit", "memory-pressure", "outstanding-network-request-others"];
/** A Worker without patience: a server that is silent for this long has had its chance. */
const BRIEF_MS = 4000;
const BRIEF = `
  import { tuning } from "/pkg/source/tuning.js";
  Object.assign(tuning, { stallMs: ${BRIEF_MS}, retries: 0, firstRetries: 0 });
  import "/pkg/worker.js";
`;
let page;
let tabs;

before(async () => {
  page = await openPage({}, {
    backCache: true,
    handle(request, response) {
      if (request.url !== "/brief.js") return files.handle(request, response);
      response.writeHead(200, { "content-type": "text/javascript", "cross-origin-embedder-policy": "require-corp" }).end(BRIEF);
      return true;
    },
  });
  await page.page.context().addInitScript(setUp);
  tabs = await hiddenTabs(page.browser);
});

/** What the pages' functions share; runs before a page's own scripts. */
function setUp() {
  window.shows = [];
  addEventListener("pageshow", ({ persisted }) => window.shows.push(persisted));
  const request = { prompt: "the people of", temperature: 0, max_tokens: 100, logit_bias: { 2: -100 } };
  window.load = async (source, options) => {
    const fireside = await import("/pkg/index.js");
    const onProgress = (p) => (window.told = p);
    return (window.engine = await fireside.Engine.load(source, { backend: "cpu", contextLength: 160, kvCache: { blocks: 24 }, onProgress, ...options }));
  };
  window.tokens = async (onToken) => [...(await window.engine.generate(request, { onToken })).choices[0].tokens].join();
  // One request after another: one of them is in its middle, wherever the page is stopped.
  window.again = async (until, onToken) => {
    let over = false;
    void until.then(() => (over = true));
    const runs = [];
    do runs.push(await window.tokens(onToken));
    while (!over);
    return runs;
  };
  // Reads a little, waits, reads the rest: at 64 unread chunks a stream pauses, so that it cannot be over before.
  window.slowly = async (until) => {
    const stream = await window.engine.completions.create({ ...request, stream: true });
    let text = "";
    let chunks = 0;
    for await (const chunk of stream) {
      text += chunk.choices[0].text;
      if (++chunks === 5) await until;
    }
    return text;
  };
  window.whole = async () => (await window.engine.completions.create(request)).choices[0].text;
  window.locks = () => navigator.locks.query().then(({ held, pending }) => ({ held: held.map(({ name }) => name), pending: pending.length }));
}

after(async () => {
  await page?.close();
});

async function until(holds) {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 20));
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const first = (name) => `${page.url}/runner.html?${name}`;

/** A tab on a page of its own, as the init script leaves it. */
async function openTab(name) {
  const tab = await page.newTab();
  await tab.goto(first(name));
  return tab;
}

const leave = (tab) => tab.goto(`${page.url}/runner.html?elsewhere`);

/** Goes back; whether the page is the one that was left, and if it is not, why. */
async function goBack(tab, name) {
  await tab.evaluate(() => void setTimeout(() => history.back()));
  await until(() => tab.evaluate((there) => location.href === there && window.shows.length > (window.left ? 1 : 0), first(name)).catch(() => false));
  return tab.evaluate(() => {
    const [{ notRestoredReasons }] = performance.getEntriesByType("navigation");
    return { kept: window.shows.at(-1), reasons: (notRestoredReasons?.reasons ?? []).map(({ reason }) => reason) };
  });
}

for (const [backend, worker] of [["cpu", true], ["cpu", false], ["webgpu", true]]) {
  test(`a page that comes back goes on where it was: ${backend}${worker ? "" : " in the page's own thread"}`, async (t) => {
    const name = `back-${backend}-${worker}`;
    const tab = await openTab(name);
    await tab.evaluate(async (options) => {
      await window.load("/tiny.gguf", options);
      window.expected = [await window.tokens(), await window.whole()];
      const back = new Promise((resolve) => addEventListener("pageshow", resolve, { once: true }));
      const running = Promise.all([window.slowly(back), window.again(back)]);
      window.left = running.then(([text, runs]) => ({ text, runs }), (error) => ({ code: error.code ?? String(error) }));
    }, { backend, worker });
    await leave(tab);
    const { kept, reasons } = await goBack(tab, name);
    t.diagnostic(kept ? "kept" : `not kept: ${reasons.join()}`);
    if (kept) {
      const got = await tab.evaluate(async () => ({ ...(await window.left), expected: window.expected, next: await window.tokens() }));
      assert.deepEqual([got.code, got.text, [...new Set(got.runs)], got.next], [undefined, got.expected[1], [got.expected[0]], got.expected[0]]);
      assert.equal(got.expected[0].split(",").length, 100);
    } else {
      assert.deepEqual(reasons.filter((reason) => !NOT_OURS.includes(reason)), [], "the package is no reason not to keep a page");
    }
    await tab.close();
  });
}

test("a page that was dropped while it was away loads again from storage, and holds nothing", async () => {
  const file = files.put("/dropped.gguf", { data });
  const tab = await openTab("dropped");
  const expected = await tab.evaluate(async () => {
    await window.load("/dropped.gguf");
    window.left = true;
    const whole = await window.tokens();
    void window.tokens();
    return whole;
  });
  await leave(tab);
  // Whoever asks for the locks of all pages may not learn that one of them is only kept: the browser drops it.
  await tab.evaluate(() => window.locks());
  const { kept, reasons } = await goBack(tab, "dropped");
  assert.deepEqual([kept, reasons], [false, ["weblocks-contention"]]);
  const got = await tab.evaluate(async () => {
    const before = await window.locks();
    const progress = [];
    await window.load("/dropped.gguf", { onProgress: (p) => progress.push(p) });
    return { before, tokens: await window.tokens(), fromCache: progress.every((p) => p.fromCache) };
  });
  assert.deepEqual(got, { before: { held: [], pending: 0 }, tokens: expected, fromCache: true });
  assert.equal(file.requests.length, 1);
  await tab.close();
});

test("a download goes on in a page that comes back", async (t) => {
  let open;
  const gate = new Promise((resolve) => (open = resolve));
  const file = files.put("/away.gguf", { data, fault: (n) => (n === 1 ? { gate: [100_000, gate] } : null) });
  const tab = await openTab("away");
  await tab.evaluate(() => {
    window.left = window.load("/away.gguf").then(() => window.tokens(), ({ code }) => code);
  });
  await until(() => tab.evaluate(() => window.told?.loaded > 0));
  await leave(tab);
  const { kept, reasons } = await goBack(tab, "away");
  t.diagnostic(kept ? "kept" : `not kept: ${reasons.join()}`);
  open();
  const tokens = await tab.evaluate(async (again) => {
    if (again) await window.load("/away.gguf");
    else await window.left;
    return window.tokens();
  }, !kept);
  assert.equal(tokens.split(",").length, 100);
  if (kept) assert.equal(file.requests.length, 1, "nothing was fetched again");
  else assert.deepEqual(reasons.filter((reason) => !NOT_OURS.includes(reason)), []);
  await tab.close();
});

for (const [how, end] of [["left", leave], ["closed", (tab) => tab.close()]]) {
  test(`a page that is ${how} in the middle of a download holds nobody up: the next one goes on where it stopped`, async (t) => {
    const big = bigGguf(24 * MB, how.length);
    const name = `/${how}.gguf`;
    const never = new Promise(() => undefined);
    const file = files.put(name, { data: big, fault: (n) => (n === 1 ? { gate: [20 * MB, never] } : null) });
    const pull = (tab) => tab.evaluate((url) => {
      const onProgress = (p) => (window.told = p);
      window.left = import("/pkg/index.js").then(({ models }) => models.pull(url, { onProgress })).catch(({ code }) => code);
    }, name);
    const [one, two] = [await openTab(`${how}-one`), await openTab(`${how}-two`)];
    await pull(one);
    let arrived = 0;
    await until(async () => (arrived = (await one.evaluate(() => window.told?.loaded)) ?? 0) > 19 * MB);
    await pull(two);
    // It waits for its turn, and is told what the first one has.
    await until(() => two.evaluate(() => window.told?.loaded > 0));
    await end(one);
    const pulled = await two.evaluate(() => window.left);
    assert.equal(pulled.sha256, crypto.createHash("sha256").update(big).digest("hex"), JSON.stringify(pulled));
    assert.equal(file.requests.length, 2);
    const start = Number(/^bytes=(\d+)-/.exec(file.requests[1].range)[1]);
    t.diagnostic(`${arrived} bytes had come, taken up at ${start}`);
    assert.ok(start >= arrived - tuning.journalBytes - MB, `${start} after ${arrived}`);
    if (how === "left") {
      const { kept, reasons } = await goBack(one, "left-one");
      // Otherwise it would have been the server's silence, after a minute.
      assert.deepEqual([kept, reasons], [false, ["weblocks-contention"]], "it was dropped for the one that waited");
    }
    await two.evaluate((id) => import("/pkg/index.js").then(({ models }) => models.remove(id)), pulled.id);
    for (const tab of [one, two]) await tab.close();
  });
}

/** Freezes a hidden tab, as browsers do with those that nobody looks at, does something meanwhile, and thaws it. */
async function frozen(tab, meanwhile) {
  await tab.send("Page.setWebLifecycleState", { state: "frozen" });
  await until(() => tab.evaluate(() => window.lifecycle.at(-1) === "freeze"));
  await meanwhile?.();
  await tab.send("Page.setWebLifecycleState", { state: "active" });
  await until(() => tab.evaluate(() => window.lifecycle.at(-1) === "resume"));
}

/** A hidden tab with the pages' functions and the log of what happened to it. */
async function hiddenTab(name) {
  const tab = await tabs.open(first(name), setUp);
  await tab.evaluate(() => {
    window.lifecycle = [];
    for (const type of ["freeze", "resume"]) document.addEventListener(type, () => window.lifecycle.push(type));
  });
  return tab;
}

for (const [backend, worker] of [["cpu", true], ["cpu", false], ["webgpu", true]]) {
  test(`a tab that is frozen in mid-decode goes on: ${backend}${worker ? "" : " in the page's own thread"}`, async () => {
    const tab = await hiddenTab(`frozen-${backend}-${worker}`);
    await tab.evaluate(async (options) => {
      await window.load("/tiny.gguf", options);
      window.expected = [await window.tokens(), await window.whole()];
      const resumed = new Promise((resolve) => document.addEventListener("resume", resolve, { once: true }));
      window.count = 0;
      window.running = Promise.all([window.slowly(resumed), window.again(resumed, () => window.count++)]).then(
        ([text, runs]) => ({ text, runs }),
        (error) => ({ code: error.code ?? String(error) }),
      );
      window.left = true;
    }, { backend, worker });
    await until(() => tab.evaluate(() => window.count > 10));
    const counts = [];
    await frozen(tab, async () => {
      const count = () => tab.evaluate(() => window.count);
      counts.push(await count());
      await pause(300);
      counts.push(await count());
    });
    assert.equal(counts[0], counts[1], "while it is frozen nothing moves");
    const got = await tab.evaluate(async () => ({ ...(await window.running), expected: window.expected, next: await window.tokens() }));
    assert.deepEqual([got.code, got.text, [...new Set(got.runs)], got.next], [undefined, got.expected[1], [got.expected[0]], got.expected[0]]);
    await tab.close();
  });
}

test("time in which a tab was frozen is no stall of its download", async () => {
  const tab = await hiddenTab("frozen-download");
  /** Freezes a download for longer than a server may be silent; null when it was over before, because this machine was that slow. */
  const attempt = async (name) => {
    let open;
    const gate = new Promise((resolve) => (open = resolve));
    const file = files.put(name, { data, fault: () => ({ gate: [100_000, gate] }) });
    await tab.evaluate((source) => {
      window.told = window.over = null;
      const worker = new Worker("/brief.js", { type: "module" });
      window.running = window.load(source, { worker }).then(() => window.tokens(), ({ code }) => code).finally(() => (window.over = true));
    }, name);
    await until(() => tab.evaluate(() => window.told?.loaded > 0 || window.over));
    let over;
    await frozen(tab, async () => {
      over = await tab.evaluate(() => window.over);
      await pause(1.5 * BRIEF_MS);
      open();
    });
    return over ? null : { tokens: await tab.evaluate(() => window.running), requests: file.requests.length };
  };
  let got = null;
  for (let n = 1; !got; n++) got = await attempt(`/frozen-${n}.gguf`);
  assert.equal(got.tokens.split(",").length, 100, got.tokens);
  assert.equal(got.requests, 1);
  await tab.close();
});

test("a device that is lost while its tab is frozen is replaced", { skip: process.platform !== "linux" && "finds the GPU process in /proc" }, async () => {
  const tab = await hiddenTab("frozen-lost");
  await tab.evaluate(async () => {
    const engine = await window.load("/tiny.gguf", { backend: "webgpu" });
    window.events = [];
    for (const type of ["devicelost", "recovered", "failed"]) engine.addEventListener(type, ({ detail }) => window.events.push([type, detail.backend ?? detail.code ?? null]));
    window.expected = await window.tokens();
    const over = new Promise((resolve) => ["recovered", "failed"].forEach((type) => engine.addEventListener(type, resolve)));
    window.running = window.again(over).catch((error) => error.code ?? String(error));
  });
  const [gpu] = gpuProcesses(page.pid);
  await frozen(tab, async () => {
    process.kill(gpu, "SIGKILL");
    await until(() => !gpuProcesses(page.pid).includes(gpu));
  });
  const got = await tab.evaluate(async () => ({ runs: await window.running, events: window.events, expected: window.expected, next: await window.tokens() }));
  assert.deepEqual(got.events, [["devicelost", null], ["recovered", "webgpu"]]);
  assert.deepEqual([[...new Set(got.runs)], got.next], [[got.expected], got.expected]);
  await tab.close();
});

test("nothing went wrong in the pages unseen", () => {
  assert.deepEqual(page.errors, []);
});
