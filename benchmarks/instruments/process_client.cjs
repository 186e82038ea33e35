// A node process that opens a model as people deploy it, nothing set, and says what that took.
//
//   node --expose-gc process_client.cjs MODEL INPUTS RUNS PACKAGE MODULES
//
// INPUTS is a folder with `inputs.json` ([{name, type, dims, file}]) and the raw values in files.
// PACKAGE is onnxruntime-node (the C++ library) or onnxruntime-web (WebAssembly, one thread), found
// in MODULES/node_modules. One JSON object is printed, as `process_client.py` prints it; bytes are
// anonymous memory of the process, or of the linear memory of WebAssembly, which never shrinks and
// here grows by what is asked for (`exactGrowth`).
"use strict";
const fs = require("fs");
const path = require("path");
const os = require("os");
const { createRequire } = require("module");
const client = require("./web_client.js");

const [model, inputs, runs, name, modules] = process.argv.slice(2);
const web = name === "onnxruntime-web";
const linear = client.watched();

function anonymous() {
  global.gc();
  const lines = fs.readFileSync("/proc/self/smaps_rollup", "utf8").split("\n");
  return 1024 * parseInt(lines.find((one) => one.startsWith("Anonymous:")).split(/\s+/)[1], 10);
}

function cpuSeconds() {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
}

function read(file) {
  const raw = fs.readFileSync(path.join(inputs, file));
  return raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.byteLength);
}

// Where the runtime of WebAssembly is taken from: a copy whose memory grows exactly.
function exactRuntime() {
  const dist = path.join(path.resolve(modules), "node_modules", "onnxruntime-web", "dist");
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "wasm-"));
  process.on("exit", () => fs.rmSync(folder, { recursive: true, force: true }));
  for (const file of fs.readdirSync(dist).filter((one) => one.startsWith("ort-wasm-"))) {
    const [from, to] = [path.join(dist, file), path.join(folder, file)];
    if (file.endsWith(".wasm")) fs.symlinkSync(from, to);
    if (file.endsWith(".mjs")) fs.writeFileSync(to, client.exactGrowth(fs.readFileSync(from, "utf8")));
  }
  return folder + path.sep;
}

async function main() {
  const ort = createRequire(path.join(path.resolve(modules), "x.js"))(name);
  if (web) ort.env.wasm.wasmPaths = exactRuntime();
  const listed = JSON.parse(fs.readFileSync(path.join(inputs, "inputs.json"), "utf8"));
  const beside = fs.existsSync(`${model}.data`) ? `${model}.data` : null;
  const inWeb = () => {
    const weights = beside && fs.readFileSync(beside);
    return client.opened(ort, path.basename(model), fs.readFileSync(model), weights);
  };
  const inLibrary = () => ort.InferenceSession.create(model, { intraOpNumThreads: 1 });
  const answer = await client.measured({
    create: web ? inWeb : inLibrary,
    feed: await client.tensors(ort, listed, read),
    runs: Number(runs),
    held: web ? linear : anonymous,
    clock: cpuSeconds,
  });
  if (web) answer.bytes = answer.held_bytes;
  console.log(JSON.stringify(answer));
}

main().catch((error) => {
  console.error(String(error).slice(0, 400));
  process.exit(1);
});
