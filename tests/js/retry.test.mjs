/** When the network code tries again: what may pass, how often, how long it waits, and what it says in the end. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { fakeStorage } from "../tools/opfs.mjs";
import { importJsTogether } from "./support.mjs";

const [{ linked, mayPass, Patience, sleep }, { tuning }, { FiresideError }] = await importJsTogether(["source/retry", "source/tuning", "errors"]);
const patient = { ...tuning };
Object.assign(tuning, { retryDelayMs: 1, maxDelayMs: 2 });
const never = new AbortController().signal;
const error = (code, details = {}) => new FiresideError(code, code, details);
const status = (n) => error("http.status", { status: n });

test("what may pass by itself, and what cannot", () => {
  for (const passing of [error("http.network"), error("http.stalled"), error("http.truncated"), ...[408, 425, 429, 500, 502, 503].map(status)]) assert.equal(mayPass(passing), true, passing.code);
  for (const final of [...[400, 401, 403, 404, 410].map(status), error("http.not_a_model"), error("source.changed"), error("http.bad_range"), new Error("x"), null]) assert.equal(mayPass(final), false);
});

test("first contact gives up soon, a download that had begun later; the error says how far it came", async () => {
  const tries = async (patience) => {
    for (let failures = 1; ; failures++) {
      const over = await patience.failed(error("http.network", { url: "u" })).then(() => null, (e) => e);
      if (over) return [failures, over];
    }
  };
  const [first, atOnce] = await tries(new Patience(never));
  assert.equal(first, patient.firstRetries + 1);
  assert.deepEqual(atOnce.details, { url: "u", bytes: 0, attempts: first });
  const begun = new Patience(never, 1000);
  begun.progressed(50_000);
  const [later, over] = await tries(begun);
  assert.equal(later, patient.retries + 1);
  assert.equal(over.details.bytes, 51_000);
  assert.ok(patient.retries > patient.firstRetries);
});

test("progress makes patience whole again, a trickle does not", async () => {
  const working = new Patience(never);
  for (let i = 0; i < 50; i++) {
    working.progressed(100_000);
    await working.failed(error("http.network"));
  }
  const trickle = new Patience(never);
  let failures = 0;
  await assert.rejects(async () => {
    for (;;) {
      trickle.progressed(1);
      await trickle.failed(error("http.network"));
      failures++;
    }
  }, { code: "http.network" });
  assert.equal(failures, patient.retries);
});

test("an abort ends a wait at once, with the signal's reason", async () => {
  const controller = new AbortController();
  const waiting = sleep(1_000_000, controller.signal);
  controller.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  await assert.rejects(new Patience(controller.signal).failed(error("http.network")), /enough/);
  const outer = new AbortController();
  const inner = linked(outer.signal);
  inner.abort(new Error("inner"));
  assert.equal(outer.signal.aborted, false);
  const other = linked(outer.signal);
  outer.abort(new Error("outer"));
  assert.match(String(other.signal.reason), /outer/);
  assert.match(String(inner.signal.reason), /inner/);
});

test("while the browser is offline a retry waits until it is not", async () => {
  fakeStorage();
  navigator.onLine = false;
  let over = false;
  const retry = new Patience(never).failed(error("http.network")).then(() => (over = true));
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(over, false);
  navigator.onLine = true;
  await retry;
  Object.assign(tuning, { offlineMs: 20 });
  navigator.onLine = false;
  await new Patience(never).failed(error("http.network"));
});
