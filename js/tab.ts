/** A name for this page, for as long as it lives: what `models.running` tells tabs apart by. */

/** Random; `crypto.randomUUID` is there in secure contexts only. */
export const TAB: string =
  typeof crypto === "object" && typeof crypto.randomUUID === "function" ? crypto.randomUUID() : Math.random().toString(36).slice(2);
