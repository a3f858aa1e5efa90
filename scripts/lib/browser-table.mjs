/** The table in docs/browsers.md: what each browser's checks came to, in words. Knows nothing of how they were run. */

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Rows of the table: a heading, and what the results of one browser are in words. */
export function rows(tokens) {
  const runs = (name) => (results) => (same(results[name]?.tokens, tokens) && same(results[name]?.streamed, tokens) ? "yes" : "no");
  const nested = (name) => (results) => {
    if (runs(name)(results) === "yes") return "yes";
    return results[name]?.code === "load.unsupported" ? "no Worker there" : "no";
  };
  return [
    ["in a Worker (the default)", runs("worker")],
    ["in the page's own thread (`worker: false`)", runs("page")],
    ["a model from a Blob or File", runs("blob")],
    ["inside a dedicated Worker of the page's", runs("dedicated")],
    ["... in a Worker that that one starts", nested("nested")],
    ["inside a SharedWorker", runs("shared")],
    ["... in a Worker that that one starts", nested("sharedNested")],
    ["inside a service worker", runs("service")],
    ["under the strict policy", (results) => (results.policy === "EvalError" ? runs("worker")(results) : "no")],
    [
      "an abort while loading, waiting, generating",
      ({ aborts }) => (aborts?.decode && aborts.tokensAfter === 0 && aborts.already && aborts.load ? "yes" : "no"),
    ],
    ["a package on another origin is `worker.cross_origin`", ({ crossOrigin }) => (crossOrigin?.code === "worker.cross_origin" ? "yes" : "no")],
  ];
}

/** Markdown for the browsers that ran. */
export function table(ran, tokens) {
  const line = (cells) => `| ${cells.join(" | ")} |`;
  return [
    line(["", ...ran.map(({ name, version }) => `${name} ${version}`)]),
    line(["---", ...ran.map(() => "---")]),
    ...rows(tokens).map(([heading, word]) => line([heading, ...ran.map(({ results }) => word(results))])),
  ].join("\n");
}

/** The cells of one browser's column, or null when the table has none for it. */
export function column(markdown, name) {
  const lines = markdown.split("\n").filter((line) => line.startsWith("|")).map((line) => line.split("|").slice(1, -1).map((cell) => cell.trim()));
  const at = lines[0]?.findIndex((cell) => cell.startsWith(`${name} `)) ?? -1;
  return at < 0 ? null : lines.slice(2).map((cells) => cells[at]);
}
