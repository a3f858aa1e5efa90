/** Opens the extension's page when its button is pressed. */
chrome.action.onClicked.addListener(() => chrome.tabs.create({ url: "index.html" }));
