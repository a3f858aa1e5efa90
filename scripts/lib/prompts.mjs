/** Prose for measuring: every repetition begins with other words, so that no shared prefix can help. */

const WORDS = ["Amber", "Birch", "Canyon", "Drift", "Elm", "Foxglove", "Glacier", "Heather", "Iris", "Juniper", "Kelp", "Larch", "Moss", "Nettle", "Oak", "Pine"];
const SENTENCES = [
  "The ferry left the pier a quarter of an hour late, because the cook had gone ashore for onions.",
  "On the upper deck a woman in a green coat was drawing the houses along the shore, one after another.",
  "She left out the new hotel, and when a passenger asked her why, she said that it would not be there long.",
  "Below, the engineer wrote the pressure into his book every ten minutes and sang to himself between the entries.",
  "It was the third week of rain, and the river carried branches, planks and once a whole garden bench.",
  "The schoolchildren had been promised seals, and they looked for them behind every rock of the estuary.",
  "At the lighthouse the ferry slowed down to hand over the post, two crates of apples and a new lamp.",
  "The keeper signed for all of it, asked for the news, and did not believe the half of what he was told.",
  "Toward evening the clouds opened, and the town on the other bank looked as if somebody had just painted it.",
  "Nobody noticed that the woman in the green coat had not got off, nor that the bench had followed them.",
];

/** Text of at least `sentences` sentences whose first words are those of repetition `tag`. */
export function prose(sentences, tag) {
  const first = WORDS[tag % WORDS.length];
  const second = WORDS[(tag * 5 + 3) % WORDS.length];
  const body = Array.from({ length: sentences }, (_, i) => SENTENCES[i % SENTENCES.length]);
  return `${first} ${second} ${tag}. ${body.join(" ")}`;
}

/** Exactly `count` token ids of such text. */
export async function promptTokens(session, count, tag) {
  const ids = await session.tokenize(prose(Math.ceil(count / 12) + 2, tag));
  if (ids.length < count) throw new Error(`the prose gives ${ids.length} tokens, ${count} are wanted`);
  return ids.slice(0, count);
}
