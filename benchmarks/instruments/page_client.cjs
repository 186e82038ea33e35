// A page in headless Chromium that opens a model in WebAssembly, nothing set, and says what that
// took, as `process_client.cjs` does for node.
//
//   node page_client.cjs MODEL INPUTS RUNS CHROMIUM MODULES
//
// CHROMIUM is the browser's program; MODULES/node_modules has onnxruntime-web and playwright-core.
// Everything is served from this machine. Seconds are those on the wall: a page knows no others.
"use strict";
const fs = require("fs");
const http = require("http");
const path = require("path");
const { createRequire } = require("module");
const client = require("./web_client.js");

const [model, inputs, runs, browserProgram, modules] = process.argv.slice(2);
const required = createRequire(path.join(path.resolve(modules), "x.js"));
const runtime = path.join(path.resolve(modules), "node_modules", "onnxruntime-web", "dist");
const KINDS = { ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm" };
const PAGE = `<!doctype html><title>onnxremat</title>
<script src="/client/web_client.js"></script><script>const linear = webClient.watched();</script>
<script src="/runtime/ort.wasm.min.js"></script>`;

const FOLDERS = { runtime, inputs, model: path.dirname(model), client: __dirname };

function answer(request, response) {
  if (request.url === "/") return response.setHeader("Content-Type", "text/html").end(PAGE);
  const [, folder, file] = decodeURIComponent(request.url).split("/");
  const full = file && FOLDERS[folder] && path.join(FOLDERS[folder], path.basename(file));
  if (!full || !fs.existsSync(full)) return response.writeHead(404).end();
  const kind = KINDS[path.extname(full)] || "application/octet-stream";
  const content = fs.readFileSync(full);
  const exact = folder === "runtime" && file.startsWith("ort-wasm-") && full.endsWith(".mjs");
  const body = exact ? client.exactGrowth(content.toString("utf8")) : content;
  return response.setHeader("Content-Type", kind).end(body);
}

// Runs on the page.
async function onPage({ name, hasData, listed, runs }) {
  const read = async (address) => (await fetch(address)).arrayBuffer();
  ort.env.wasm.wasmPaths = "/runtime/";
  const bytes = async (file) => new Uint8Array(await read(`/model/${encodeURIComponent(file)}`));
  const answer = await webClient.measured({
    create: async () =>
      webClient.opened(ort, name, await bytes(name), hasData && (await bytes(`${name}.data`))),
    feed: await webClient.tensors(ort, listed, (file) => read(`/inputs/${file}`)),
    runs,
    held: linear,
    clock: () => performance.now() / 1e3,
  });
  return { ...answer, bytes: answer.held_bytes };
}

async function main() {
  const { chromium } = required("playwright-core");
  const server = http.createServer(answer).listen(0, "127.0.0.1");
  await new Promise((ready) => server.once("listening", ready));
  const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"];
  const browser = await chromium.launch({ executablePath: browserProgram, args });
  try {
    const page = await browser.newPage();
    const errors = [];
    page.on("pageerror", (error) => errors.push(String(error)));
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    const answer = await page.evaluate(onPage, {
      name: path.basename(model),
      hasData: fs.existsSync(`${model}.data`),
      listed: JSON.parse(fs.readFileSync(path.join(inputs, "inputs.json"), "utf8")),
      runs: Number(runs),
    });
    if (errors.length) throw new Error(errors[0]);
    console.log(JSON.stringify(answer));
  } finally {
    await browser.close();
    server.close();
  }
}

main().catch((error) => {
  console.error(String(error).slice(0, 400));
  process.exit(1);
});
