/** Small GGUF tools for tests: splitting a file as gguf-split does, and making files of any size. Not a reader of hostile files. */
import fs from "node:fs";

const SCALAR_BYTES = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const STRING = 8;
const ARRAY = 9;
const ALIGNMENT = 32;

const align = (n) => Math.ceil(n / ALIGNMENT) * ALIGNMENT;

function string(text) {
  const bytes = Buffer.from(text);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(bytes.length));
  return Buffer.concat([length, bytes]);
}

function number(bytes, value) {
  const out = Buffer.alloc(bytes);
  if (bytes === 8) out.writeBigUInt64LE(BigInt(value));
  else out.writeUIntLE(value, 0, bytes);
  return out;
}

/** A metadata pair of an unsigned integer type: 2 is u16, 4 is u32, 5 is i32. */
export function pair(key, type, value) {
  return Buffer.concat([string(key), number(4, type), type === STRING ? string(value) : number(SCALAR_BYTES[type], value)]);
}

/**
 * A GGUF file of these pairs and tensors `{ name, dims, type, bytes, data }`. Without data, or with `gap` bytes of nothing before the
 * last half of the tensors, the header is given by itself, with where each tensor lies.
 */
export function writeGguf(pairs, tensors, { data = true, gap = 0 } = {}) {
  let at = 0;
  const places = [];
  const entries = tensors.map(({ name, dims, type, bytes }, i) => {
    if (gap > 0 && i === Math.floor(tensors.length / 2)) at = align(at + gap);
    places.push(at);
    const entry = Buffer.concat([string(name), number(4, dims.length), ...dims.map((dim) => number(8, dim)), number(4, type), number(8, at)]);
    at = align(at + bytes);
    return entry;
  });
  const head = Buffer.concat([Buffer.from("GGUF"), number(4, 3), number(8, tensors.length), number(8, pairs.length), ...pairs, ...entries]);
  const header = Buffer.concat([head, Buffer.alloc(align(head.length) - head.length)]);
  if (!data || gap > 0) return { header, places: places.map((place) => header.length + place), length: header.length + at };
  const body = Buffer.alloc(at);
  let to = 0;
  for (const tensor of tensors) {
    tensor.data.copy(body, to);
    to = align(to + tensor.bytes);
  }
  return Buffer.concat([header, body]);
}

/** The raw pairs and tensors of a sound file. */
export function readGguf(file) {
  const buffer = typeof file === "string" ? fs.readFileSync(file) : file;
  let at = 8;
  const u = (bytes) => {
    const value = bytes === 8 ? Number(buffer.readBigUInt64LE(at)) : buffer.readUIntLE(at, bytes);
    at += bytes;
    return value;
  };
  const text = () => {
    const length = u(8);
    at += length;
    return buffer.toString("utf8", at - length, at);
  };
  const skip = (type) => {
    if (type === STRING) text();
    else if (type === ARRAY) {
      const inner = u(4);
      for (let left = u(8); left > 0; left--) skip(inner);
    } else at += SCALAR_BYTES[type];
  };
  const [numTensors, numPairs] = [u(8), u(8)];
  const pairs = Array.from({ length: numPairs }, () => {
    const start = at;
    text();
    skip(u(4));
    return buffer.subarray(start, at);
  });
  const tensors = Array.from({ length: numTensors }, () => {
    const name = text();
    const dims = Array.from({ length: u(4) }, () => u(8));
    return { name, dims, type: u(4), offset: u(8) };
  });
  const start = align(at);
  const ends = tensors.map((t) => t.offset).concat(buffer.length - start).sort((a, b) => a - b);
  for (const tensor of tensors) {
    const end = ends.find((offset) => offset > tensor.offset);
    tensor.data = buffer.subarray(start + tensor.offset, start + end);
    tensor.bytes = tensor.data.length;
  }
  return { pairs, tensors };
}

/** A file as gguf-split would give it: all metadata in the first part, `split.*` in each, tensors in order. */
export function splitGguf(file, count, { no = (i) => i, total = count, tensorsFirst = true } = {}) {
  const { pairs, tensors } = readGguf(file);
  const own = tensorsFirst ? count : count - 1;
  const size = Math.ceil(tensors.length / own);
  return Array.from({ length: count }, (_, i) => {
    const group = tensorsFirst ? i : i - 1;
    const split = [pair("split.no", 2, no(i)), pair("split.count", 2, total), pair("split.tensors.count", 5, tensors.length)];
    return writeGguf([...(i === 0 ? pairs : []), ...split], group < 0 ? [] : tensors.slice(group * size, (group + 1) * size));
  });
}

/** The same model with nothing of `gap` bytes in the middle of its data: [offset, bytes] pieces and the whole length. */
export function spreadGguf(file, gap) {
  const { pairs, tensors } = readGguf(file);
  const { header, places, length } = writeGguf(pairs, tensors, { gap });
  return { length, pieces: [[0, header], ...tensors.map(({ data }, i) => [places[i], data])] };
}

/** Only the header of a model as this one but for its size: so many layers with feed-forward matrices that wide. */
export function hugeGguf(file, layers, ffn) {
  const { pairs, tensors } = resized(file, layers, ffn);
  return writeGguf(pairs, tensors, { data: false });
}

/** The same with all its bytes, those of this one over and over. */
export function wideGguf(file, layers, ffn) {
  const { pairs, tensors } = resized(file, layers, ffn);
  return writeGguf(pairs, tensors.map((tensor) => ({ ...tensor, data: Buffer.alloc(tensor.bytes, tensor.data) })));
}

function resized(file, layers, ffn) {
  const { pairs, tensors } = readGguf(file);
  const named = (name) => string(name);
  const changed = ["llama.block_count", "llama.feed_forward_length"];
  const kept = pairs.filter((bytes) => !changed.some((key) => bytes.subarray(0, key.length + 8).equals(named(key))));
  const own = tensors.filter(({ name }) => !name.startsWith("blk."));
  const block = tensors.filter(({ name }) => name.startsWith("blk.0."));
  const all = Array.from({ length: layers }, (_, layer) => block.map((tensor) => {
    const dims = tensor.name.includes("ffn_gate") || tensor.name.includes("ffn_up") ? [tensor.dims[0], ffn] : tensor.name.includes("ffn_down") ? [ffn, tensor.dims[1]] : tensor.dims;
    const scale = dims.reduce((a, b) => a * b) / tensor.dims.reduce((a, b) => a * b);
    return { ...tensor, name: tensor.name.replace("blk.0.", `blk.${layer}.`), dims, bytes: Math.round(tensor.bytes * scale) };
  })).flat();
  const more = [pair(changed[0], 4, layers), pair(changed[1], 4, ffn)];
  return { pairs: [...kept, ...more], tensors: [...own, ...all] };
}

/** A sound GGUF file of about `bytes` bytes that is no model: one big tensor of pseudo-random bytes. */
export function bigGguf(bytes, seed = 1) {
  const data = Buffer.alloc(Math.ceil(bytes / 128) * 128);
  const words = new Uint32Array(data.buffer, data.byteOffset, data.length / 4);
  for (let i = 0, x = seed; i < words.length; i++) words[i] = x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
  return writeGguf([pair("general.architecture", STRING, "none")], [{ name: "big", dims: [data.length / 4], type: 0, bytes: data.length, data }]);
}
