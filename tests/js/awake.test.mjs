/** Waits that a standstill of the machine does not use up. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { importJs } from "./support.mjs";

const { afterAwake } = await importJs("awake");

/** Timers that fire when told: whatever the clock says, one at a time. */
function timersByHand(t) {
  const asked = [];
  t.mock.method(globalThis, "setTimeout", (callback, ms) => asked.push({ callback, ms }));
  t.mock.method(globalThis, "clearTimeout", (id) => delete asked[id - 1].callback);
  return { asked, fire: () => asked.at(-1).callback?.() };
}

test("a timer that comes as late as can be uses up one slice, and all slices make the wait", (t) => {
  const { asked, fire } = timersByHand(t);
  let over = 0;
  afterAwake(1000, () => over++);
  for (let i = 0; i < 4; i++) {
    fire();
    assert.equal(over, 0, `after ${i + 1} slices`);
  }
  fire();
  assert.equal(over, 1);
  assert.equal(asked.reduce((sum, { ms }) => sum + ms, 0), 1000);
});

test("a wait that is stopped never ends", (t) => {
  const { fire } = timersByHand(t);
  let over = 0;
  const stop = afterAwake(1000, () => over++);
  fire();
  stop();
  for (let i = 0; i < 10; i++) fire();
  assert.equal(over, 0);
});
