/** The small parts of storage: ranges, journal, record, permits, names of parts, progress. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { fakeStorage } from "../tools/opfs.mjs";
import { importJs } from "./support.mjs";

const { Ranges } = await importJs("storage/ranges");
const { Journal, readJournal } = await importJs("storage/journal");
const { decodeRecord, encodeRecord, folderKey } = await importJs("storage/record");
const { Permits } = await importJs("storage/permits");
const { partUrls, PartsSource } = await importJs("source/parts");
const { Progress } = await importJs("source/progress");
const { Sha256 } = await importJs("source/sha256");
const { announce, hold, running } = await importJs("storage/locks");

test("ranges merge, cover and have gaps as a set of bytes does", () => {
  const size = 40;
  let state = 7;
  const next = (n) => (state = (state * 48271) % 2147483647) % n;
  for (let round = 0; round < 300; round++) {
    const ranges = new Ranges();
    const bytes = new Set();
    for (let i = 0; i < 8; i++) {
      const start = next(size);
      const end = start + next(size - start + 1);
      ranges.add(start, end);
      for (let at = start; at < end; at++) bytes.add(at);
    }
    assert.equal(ranges.bytes, bytes.size);
    const [from, to] = [next(size), next(size)].sort((a, b) => a - b);
    const all = Array.from({ length: to - from }, (_, i) => from + i);
    assert.equal(ranges.covers(from, to), all.every((at) => bytes.has(at)));
    const missing = Array.from({ length: size }, (_, i) => i).filter((at) => at >= from && !bytes.has(at));
    const gap = ranges.gap(from, size);
    assert.equal(gap?.[0], missing[0]);
    if (gap) assert.ok(!bytes.has(gap[1] - 1) && (gap[1] === size || bytes.has(gap[1])));
    let prefix = 0;
    while (bytes.has(prefix)) prefix++;
    assert.equal(ranges.prefix, prefix);
    assert.deepEqual(Ranges.from(JSON.parse(JSON.stringify(ranges.save())), size).save(), ranges.save());
  }
});

test("lists that are no ranges are refused", () => {
  for (const bad of [null, [[3, 2]], [[0, 5], [5, 6]], [[0, 5], [3, 9]], [[-1, 4]], [[0, 101]], [[0, "4"]], ["x"]]) assert.equal(Ranges.from(bad, 100), null, JSON.stringify(bad));
});

function memoryFile() {
  const file = { bytes: Buffer.alloc(0), writes: 0 };
  file.sync = {
    write(from, { at }) {
      const grown = Buffer.alloc(Math.max(file.bytes.length, at + from.length));
      file.bytes.copy(grown);
      grown.set(from, at);
      file.bytes = grown;
      return from.length;
    },
    flush: () => undefined,
    close: () => undefined,
    truncate: (n) => (file.bytes = file.bytes.subarray(0, n)),
  };
  return file;
}

const journalState = (end) => ({
  id: "ä model",
  source: "http://x/a.gguf",
  files: 1,
  validator: { etag: '"e"', modified: null, total: 1000 },
  ranges: [[0, end]],
  hash: new Sha256().update(Buffer.alloc(end)).save(),
});

test("the journal's newest sound slot counts; a torn write loses only itself", () => {
  const file = memoryFile();
  const journal = new Journal(file.sync);
  assert.equal(readJournal(file.bytes), null);
  for (const end of [10, 20, 30]) journal.write(journalState(end));
  const read = readJournal(file.bytes);
  assert.equal(read.ranges.bytes, 30);
  assert.equal(read.hash.bytes, 30);
  assert.equal(read.id, "ä model");
  const slot = 16 * 1024;
  for (const at of [slot + 5, slot + 70, slot + 100]) {
    const torn = Buffer.from(file.bytes);
    torn[at] ^= 1;
    assert.equal(readJournal(torn).ranges.bytes, 20, `byte ${at} of the newest slot is damaged`);
  }
  const resumed = new Journal(file.sync, read.sequence);
  resumed.write(journalState(40));
  assert.equal(readJournal(file.bytes).ranges.bytes, 40);
  resumed.clear();
  assert.equal(readJournal(file.bytes), null);
});

test("a journal whose hash is ahead of its bytes, or whose ranges are none, is none", () => {
  for (const change of [{ hash: new Sha256().update(Buffer.alloc(50)).save() }, { ranges: [[0, 5000]] }, { hash: {} }, { validator: { total: null } }]) {
    const file = memoryFile();
    new Journal(file.sync).write({ ...journalState(10), ...change });
    assert.equal(readJournal(file.bytes), null, JSON.stringify(change));
  }
});

test("half a record is none", () => {
  const record = { id: "m", files: [{ source: "s", bytes: 1, sha256: "0" }], addedAt: 5 };
  const text = encodeRecord(record);
  assert.deepEqual(decodeRecord(text), record);
  for (const bad of [null, "", text.slice(0, -1), text.replace('"m"', '"n"'), text.slice(1)]) assert.equal(decodeRecord(bad), null);
  assert.notEqual(folderKey(["a", "b"]), folderKey(["ab"]));
});

test("permits are handed out in order, never more than there are, and not to those who left", async () => {
  const permits = new Permits(2);
  const never = new AbortController().signal;
  const [one, two] = [permits.now(), permits.now()];
  assert.equal(permits.now(), null);
  const order = [];
  const leaving = new AbortController();
  const waits = [
    permits.next(never).then((release) => order.push("a") && release),
    permits.next(leaving.signal).catch(() => order.push("left")),
    permits.next(never).then((release) => order.push("c") && release),
  ];
  leaving.abort();
  one();
  one();
  const a = await waits[0];
  assert.equal(permits.now(), null, "a permit that is given back twice counts once");
  a();
  await waits[2];
  assert.deepEqual(order.filter((name) => name !== "left"), ["a", "c"]);
  assert.ok(order.includes("left"));
  two();
  assert.notEqual(permits.now(), null);
});

test("one part's URL stands for all, and nothing else does", () => {
  assert.deepEqual(partUrls("http://x/m-00002-of-00003.gguf?a=1"), [1, 2, 3].map((i) => `http://x/m-0000${i}-of-00003.gguf?a=1`));
  for (const url of ["http://x/m.gguf", "http://x/m-00001-of-00001.gguf", "http://x/m-00004-of-00003.gguf", "http://x/m-1-of-3.gguf"]) assert.deepEqual(partUrls(url), [url]);
});

test("several files read as one, also across their borders", async () => {
  const source = (bytes) => ({ len: bytes.length, read: async (at, length) => Uint8Array.from(bytes.slice(at, at + length)) });
  const joined = new PartsSource([source([1, 2, 3]), source([4]), source([5, 6])]);
  assert.deepEqual([joined.len, joined.files], [6, [3, 1, 2]]);
  for (let at = 0; at <= 6; at++) {
    for (let length = 0; at + length <= 6; length++) assert.deepEqual([...(await joined.read(at, length))], [1, 2, 3, 4, 5, 6].slice(at, at + length));
  }
  await assert.rejects(joined.read(5, 2), { code: "source.short_read" });
});

test("progress over several files adds up and never goes back", () => {
  const seen = [];
  const progress = new Progress("download", 2, false, (p) => seen.push(p));
  const [a, b] = [progress.of(0, "a"), progress.of(1, "b")];
  a(5, 10);
  b(1, 20);
  a(3, 10);
  b(2, 20);
  assert.deepEqual(seen.map((p) => [p.loaded, p.total]), [[5, 10], [6, 30], [6, 30], [7, 30]]);
});

test("engines are announced by locks; a lock waits, or says that it is taken, or is given up", async () => {
  fakeStorage();
  const release = await announce({ id: "a model/ü", tab: "t", since: 5 });
  assert.deepEqual(await running(), [{ id: "a model/ü", tab: "t", since: 5 }]);
  release();
  await new Promise((resolve) => setTimeout(resolve));
  assert.deepEqual(await running(), []);
  const first = await hold("x");
  assert.equal(await hold("x", { ifAvailable: true }), null);
  const controller = new AbortController();
  const waiting = hold("x", { signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  const second = hold("x");
  first();
  (await second)();
});
