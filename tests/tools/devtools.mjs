/**
 * Tabs by the devtools protocol alone. Playwright tells every page of its own that it is in front and in focus, and a browser freezes only
 * tabs that are hidden: these can be.
 */

/** Opens windows of a context of their own in a browser of Playwright's. */
export async function hiddenTabs(browser) {
  const root = await browser.newBrowserCDPSession();
  const { browserContextId } = await root.send("Target.createBrowserContext");
  const open = async (url, more = {}) => {
    const { targetId } = await root.send("Target.createTarget", { url, browserContextId, ...more });
    const { sessionId } = await root.send("Target.attachToTarget", { targetId, flatten: false });
    return tab(root, sessionId, targetId);
  };
  return { open };
}

function tab(root, sessionId, targetId) {
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
    /** Brings the tab to the front of its window: the others are hidden. */
    show: () => root.send("Target.activateTarget", { targetId }),
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
