// Keeps open pages current. A stream reports that something changed; the script fetches the page
// again and replaces the regions that differ. Log lines are appended as they arrive. Without this
// script every page still works.
(() => {
  "use strict";
  const MIN_GAP_MS = 1000; // between two fetches
  const AT_LEAST_EVERY_MS = 10000; // picks up changes without events, such as probes
  const RETRY_MS = 5000;
  const MAX_LINES = 2000;

  const main = document.getElementById("main");
  const note = document.getElementById("live");
  let source = null;
  let timer = null;
  let fetching = false;
  let again = false; // something changed during a fetch
  let lastFetch = Date.now();

  const say = (words, tone) => {
    if (note.textContent !== words) note.textContent = words;
    note.className = tone;
  };

  // A button copies a command; where the clipboard is not available it selects the command.
  document.documentElement.classList.add("js");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".cmd button");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = document.execCommand("copy") ? "copied" : "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });

  const log = () => document.getElementById("log");
  const toEnd = () => { const pane = log(); if (pane) pane.scrollTop = pane.scrollHeight; };
  toEnd();
  if (!main.dataset.stream) return;

  const addLines = (html) => {
    const pane = log();
    if (!pane) return;
    const atEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40;
    pane.insertAdjacentHTML("beforeend", html);
    while (pane.childElementCount > MAX_LINES) pane.firstElementChild.remove();
    document.getElementById("log-empty")?.remove();
    if (atEnd) toEnd();
  };

  // Replacing a region would lose the text that the user is selecting in it.
  const selectingIn = (region) => {
    const selection = getSelection();
    return !selection.isCollapsed && region.contains(selection.anchorNode);
  };

  const swap = (old, fresh) => {
    if (!fresh || selectingIn(old) || old.innerHTML === fresh.innerHTML) return;
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const href = focused?.getAttribute("href");
    const label = focused?.getAttribute("aria-label");
    old.replaceWith(fresh);
    if (!focused) return;
    const same = (one) => (href && one.getAttribute("href") === href)
      || (label && one.getAttribute("aria-label") === label);
    [...fresh.querySelectorAll("a, button")].find(same)?.focus({ preventScroll: true });
  };

  const take = (page) => {
    document.title = page.title;
    for (const old of document.querySelectorAll("[data-region]")) {
      swap(old, page.getElementById(old.id));
    }
    const fresh = page.getElementById("main");
    if (fresh.dataset.mode === main.dataset.mode) return;
    // The operation ended or was resumed: use the other stream, and the log as it is now.
    const section = document.getElementById("log-section");
    section?.replaceWith(page.getElementById("log-section"));
    toEnd();
    main.dataset.mode = fresh.dataset.mode;
    main.dataset.stream = fresh.dataset.stream;
    connect();
  };

  const refresh = async () => {
    clearTimeout(timer);
    again = fetching;
    if (fetching || document.hidden) return;
    fetching = true;
    lastFetch = Date.now();
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      take(new DOMParser().parseFromString(await answer.text(), "text/html"));
      say("● live", "good");
    } catch {
      say("! not live: the server does not answer; trying again", "bad");
    }
    fetching = false;
    soon(again ? 0 : AT_LEAST_EVERY_MS);
  };

  const soon = (wait) => {
    clearTimeout(timer);
    timer = setTimeout(refresh, Math.max(wait, MIN_GAP_MS - (Date.now() - lastFetch)));
  };

  const disconnect = () => { source?.close(); source = null; };

  const connect = () => {
    disconnect();
    const opened = new EventSource(main.dataset.stream);
    source = opened;
    opened.onopen = () => say("● live", "good");
    opened.addEventListener("changed", () => soon(0));
    opened.addEventListener("log", (event) => addLines(event.data));
    opened.addEventListener("end", () => { disconnect(); soon(0); });
    opened.onerror = () => {
      say("! not live: trying again", "bad");
      if (opened.readyState !== EventSource.CLOSED) return;
      // The server refused, so the browser does not reconnect. A new page has the stream to use
      // instead.
      disconnect();
      main.dataset.mode = "lost";
      soon(RETRY_MS);
    };
  };

  // A hidden page holds no connection: browsers allow only a few per server.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
      disconnect();
    } else {
      // The new page has everything that happened in between, including the log.
      main.dataset.mode = "hidden";
      refresh();
    }
  });

  if (!document.hidden) {
    connect();
    soon(AT_LEAST_EVERY_MS);
  }
})();
