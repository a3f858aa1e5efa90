/** The hash against Node's, in pieces of every size, and taken up from a saved state. */
import assert from "node:assert/strict";
import crypto from "node:crypto";
import { test } from "node:test";
import { importJs } from "./support.mjs";

const { Sha256, sha256Text } = await importJs("source/sha256");
const DATA = crypto.createHash("shake256", { outputLength: 5000 }).update("fireside").digest();
const reference = (bytes) => crypto.createHash("sha256").update(bytes).digest("hex");

test("every length around the block's size has the standard's digest", () => {
  for (let length = 0; length <= 200; length++) assert.equal(new Sha256().update(DATA.subarray(0, length)).hex(), reference(DATA.subarray(0, length)), `${length}`);
  assert.equal(sha256Text("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
});

test("pieces of any size, and a state saved as JSON at any place, change nothing", () => {
  for (const piece of [1, 7, 63, 64, 65, 1000]) {
    let hash = new Sha256();
    for (let at = 0; at < DATA.length; at += piece) {
      hash.update(DATA.subarray(at, at + piece));
      hash = Sha256.resume(JSON.parse(JSON.stringify(hash.save())));
    }
    assert.equal(hash.bytes, DATA.length);
    assert.equal(hash.hex(), reference(DATA));
    assert.equal(hash.update(DATA).hex(), reference(Buffer.concat([DATA, DATA])), "the digest does not end the hash");
  }
});

test("more than 512 MB are counted right", () => {
  const state = new Sha256().save();
  const hash = Sha256.resume({ ...state, bytes: 2 ** 35 });
  const other = Sha256.resume({ ...state, bytes: 2 ** 35 + 2 ** 32 });
  assert.notEqual(hash.hex(), other.hex(), "the length is 64 bits of the digest");
});

test("what is no state is none", () => {
  const state = new Sha256().update(DATA.subarray(0, 70)).save();
  for (const bad of [null, {}, { ...state, words: [1] }, { ...state, rest: [] }, { ...state, bytes: -1 }, { ...state, bytes: 0.5 }, { ...state, words: Array(8).fill("a") }]) {
    assert.equal(Sha256.resume(bad), null, JSON.stringify(bad));
  }
});
