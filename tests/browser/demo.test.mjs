/** The demo page of `npm start`: load, generate, figures, stop, and an error said in words. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { TINY, golden, openPage } from "./support.mjs";

let demo;

before(async () => {
  demo = await openPage({ "/models/default.gguf": TINY, "/bad.gguf": golden("hostile/bad_magic.gguf") });
  await demo.page.goto(`${demo.url}/index.html`);
});

after(async () => {
  await demo?.close();
});

test("it loads, answers and shows its figures", async () => {
  const { page } = demo;
  await page.selectOption("select[name=backend]", "cpu");
  await page.click("#load button");
  await page.waitForSelector("#ask fieldset:not([disabled])");
  assert.match(await page.textContent("#status"), /on cpu/);
  // The likeliest token, each time the same: a drawn one may be the end of the answer, with nothing to show or to stop.
  await page.fill("input[name=temperature]", "0");
  await page.fill("input[name=max_tokens]", "8");
  await page.click("#ask button[type=submit]");
  await page.waitForFunction(() => document.querySelector("#figures").textContent.startsWith("cpu |"));
  assert.ok((await page.textContent("#answer")).length > 0);
});

test("it stops", async () => {
  const { page } = demo;
  await page.fill("input[name=max_tokens]", "100000");
  await page.fill("textarea", "the people of the");
  // Pressed from inside the page when the first text is there: from outside, the answer may end before the press arrives.
  await page.evaluate(() => {
    new MutationObserver((_, observer) => {
      if (document.querySelector("#answer").textContent === "") return;
      observer.disconnect();
      document.querySelector("#stop").click();
    }).observe(document.querySelector("#answer"), { childList: true });
  });
  await page.click("#ask button[type=submit]");
  await page.waitForFunction(() => document.querySelector("#figures").textContent !== "");
  assert.equal(await page.textContent("#figures"), "stopped");
  await page.waitForFunction(() => document.querySelector("#stop").disabled);
});

test("a source that was chosen and not given is said in a sentence, and what is loaded stays", async () => {
  const { page } = demo;
  for (const [source, said] of [["file", "No file is chosen"], ["url", "The URL is empty"]]) {
    await page.check(`input[value=${source}]`);
    await page.click("#load button");
    await page.waitForFunction((text) => document.querySelector("#error").textContent.startsWith(text), said);
    assert.equal(await page.isEnabled("#ask button[type=submit]"), true);
  }
});

test("no number of tokens is no limit of 0", async () => {
  const { page } = demo;
  await page.fill("input[name=max_tokens]", "");
  await page.click("#ask button[type=submit]");
  await page.waitForFunction(() => document.querySelector("#answer").textContent + document.querySelector("#figures").textContent !== "");
  await page.evaluate(() => document.querySelector("#stop").click());
  await page.waitForFunction(() => document.querySelector("#figures").textContent !== "");
});

test("a file from disk loads, a bad URL is said", async () => {
  const { page } = demo;
  await page.check("input[value=file]");
  await page.setInputFiles("input[name=file]", TINY);
  await page.click("#load button");
  await page.waitForSelector("#ask fieldset:not([disabled])");
  await page.check("input[value=url]");
  await page.fill("input[name=url]", `${demo.url}/bad.gguf`);
  await page.click("#load button");
  await page.waitForFunction(() => document.querySelector("#error").textContent.includes("gguf.bad_magic"));
  assert.deepEqual(demo.errors, []);
});
