/** Which bytes of a file are there: a sorted list of ranges that neither touch nor overlap. Plain arithmetic. */

/** Start (inclusive) and end (exclusive). */
export type Span = [start: number, end: number];

/** The set of bytes that have arrived. */
export class Ranges {
  #spans: Span[] = [];

  /** Reads back what `save` gave; null when it is no such list. */
  static from(value: unknown, total: number): Ranges | null {
    if (!Array.isArray(value)) return null;
    const ranges = new Ranges();
    let last = -1;
    for (const span of value as unknown[]) {
      const [start, end] = Array.isArray(span) ? (span as unknown[]) : [];
      const sound = Number.isSafeInteger(start) && Number.isSafeInteger(end);
      if (!sound || (start as number) <= last || (end as number) <= (start as number) || (end as number) > total) return null;
      ranges.#spans.push([start as number, end as number]);
      last = end as number;
    }
    return ranges;
  }

  save(): Span[] {
    return this.#spans.map(([start, end]) => [start, end]);
  }

  /** Bytes that are there. */
  get bytes(): number {
    return this.#spans.reduce((sum, [start, end]) => sum + end - start, 0);
  }

  /** End of what is there without a gap from the file's start. */
  get prefix(): number {
    const first = this.#spans[0];
    return first?.[0] === 0 ? first[1] : 0;
  }

  add(start: number, end: number): void {
    if (end <= start) return;
    const before = this.#spans.filter((span) => span[1] < start);
    const after = this.#spans.filter((span) => span[0] > end);
    const touched = this.#spans.slice(before.length, this.#spans.length - after.length);
    const merged: Span = [Math.min(start, touched[0]?.[0] ?? start), Math.max(end, touched.at(-1)?.[1] ?? end)];
    this.#spans = [...before, merged, ...after];
  }

  /** True when all of [start, end) is there. */
  covers(start: number, end: number): boolean {
    return end <= start || this.#spans.some((span) => span[0] <= start && end <= span[1]);
  }

  /** The first stretch within [from, total) that is missing. */
  gap(from: number, total: number): Span | null {
    let start = from;
    for (const span of this.#spans) {
      if (span[1] <= start) continue;
      if (span[0] > start) return [start, Math.min(span[0], total)];
      start = span[1];
    }
    return start < total ? [start, total] : null;
  }
}
