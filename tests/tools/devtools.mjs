/**
 * Tabs by the devtools protocol alone. Playwright tells every page of its own that it is in front and in focus, and a browser freezes only
 * tabs that are hidden: these are.
 */

/** Opens hidden tabs of a context of their own in a browser of Playwright's. */
export async function hiddenTabs(browser) {
  const root = await browser.newBrowserCDPSession();
  const { browserContextId } = await root.send("Target.createBrowserContext");
  const open = async (url) => {
    const { targetId } = await root.send("Target.createTarget", { url, browserContextId });
    const { sessionId } = await root.send("Target.attachToTarget", { targetId, flatten: false });
    return talk(root, sessionId, targetId);
  };
  return {
    /** Opens a page behind another one; `setUp` runs before its own scripts. */
    async open(url, setUp) {
      const tab = await open("about:blank");
      const front = await open("about:blank");
      await tab.send("Page.enable");
      await tab.send("Page.addScriptToEvaluateOnNewDocument", { source: `(${setUp})()` });
      await tab.send("Page.navigate", { url });
      while (!(await tab.evaluate((there) => location.href === there && document.readyState === "complete" && document.hidden, url).catch(() => false))) {
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      return { ...tab, close: () => Promise.all([tab.close(), front.close()]) };
    },
  };
}

/** The messages of one tab, wrapped in those of the browser's own session. */
function talk(root, sessionId, targetId) {
  const answers = new Map();
  let lastId = 0;
  root.on("Target.receivedMessageFromTarget", ({ sessionId: from, message }) => {
    if (from !== sessionId) return;
    const { id, result, error } = JSON.parse(message);
    const [resolve, reject] = answers.get(id) ?? [];
    answers.delete(id);
    if (error) reject?.(new Error(error.message));
    else resolve?.(result);
  });
  const send = (method, params = {}) => new Promise((resolve, reject) => {
    const id = ++lastId;
    answers.set(id, [resolve, reject]);
    root.send("Target.sendMessageToTarget", { sessionId, message: JSON.stringify({ id, method, params }) }).catch(reject);
  });
  return {
    send,
    close: () => root.send("Target.closeTarget", { targetId }),
    /** Evaluates a function in the page, as Playwright's page does; a promise is awaited. */
    async evaluate(fn, arg) {
      const expression = `(${fn})(${JSON.stringify(arg) ?? ""})`;
      const { result, exceptionDetails } = await send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
      if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
      return result.value;
    },
  };
}
