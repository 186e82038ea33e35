// A node process that opens a model as people deploy it, nothing set, and says what that took.
//
//   node --expose-gc process_client.cjs MODEL INPUTS RUNS PACKAGE MODULES
//
// INPUTS is a folder with `inputs.json` ([{name, type, dims, file}]) and the raw values in files.
// PACKAGE is onnxruntime-node (the C++ library) or onnxruntime-web (WebAssembly, one thread), found
// in MODULES/node_modules. One JSON object is printed, as `process_client.py` prints it; bytes are
// anonymous memory of the process, or of the linear memory of WebAssembly, which never shrinks.
"use strict";
const crypto = require("crypto");
const fs = require("fs");
const path = require("path");
const { createRequire } = require("module");

const [model, inputs, runs, name, modules] = process.argv.slice(2);
const web = name === "onnxruntime-web";
const KINDS = {
  float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array,
  bool: Uint8Array, uint8: Uint8Array, int8: Int8Array,
};

const memories = [];
if (web) {
  for (const call of ["instantiate", "instantiateStreaming"]) {
    const original = WebAssembly[call];
    if (!original) continue;
    WebAssembly[call] = async (...args) => {
      const made = await original.apply(WebAssembly, args);
      const instance = made.instance || made;
      for (const value of Object.values(instance.exports)) {
        if (value instanceof WebAssembly.Memory) memories.push(value);
      }
      const given = args[1] || {};
      for (const part of Object.values(given)) {
        for (const value of Object.values(part)) {
          if (value instanceof WebAssembly.Memory) memories.push(value);
        }
      }
      return made;
    };
  }
}

function held() {
  if (web) return Math.max(0, ...memories.map((one) => one.buffer.byteLength));
  global.gc();
  const lines = fs.readFileSync("/proc/self/smaps_rollup", "utf8").split("\n");
  return 1024 * parseInt(lines.find((one) => one.startsWith("Anonymous:")).split(/\s+/)[1], 10);
}

function bytesOf(value) {
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
}

async function main() {
  const ort = createRequire(path.join(path.resolve(modules), "x.js"))(name);
  const feed = {};
  for (const one of JSON.parse(fs.readFileSync(path.join(inputs, "inputs.json"), "utf8"))) {
    const raw = fs.readFileSync(path.join(inputs, one.file));
    const exact = raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.byteLength);
    feed[one.name] = new ort.Tensor(one.type, new KINDS[one.type](exact), one.dims);
  }
  const before = held();
  const began = process.hrtime.bigint();
  let session;
  if (web) {
    ort.env.wasm.numThreads = 1;
    const options = { executionProviders: ["wasm"] };
    const beside = `${model}.data`;
    if (fs.existsSync(beside)) {
      options.externalData = [{ path: path.basename(beside), data: fs.readFileSync(beside) }];
    }
    session = await ort.InferenceSession.create(fs.readFileSync(model), options);
  } else {
    session = await ort.InferenceSession.create(model, { intraOpNumThreads: 1 });
  }
  const loadSeconds = Number(process.hrtime.bigint() - began) / 1e9;
  const loaded = held();
  let outputs = {};
  let best = Infinity;
  for (let i = 0; i < Number(runs); i++) {
    outputs = {};
    const start = process.cpuUsage();
    outputs = await session.run(feed);
    const used = process.cpuUsage(start);
    best = Math.min(best, (used.user + used.system) / 1e6);
  }
  const after = held();
  const bits = crypto.createHash("sha256");
  let size = 0;
  for (const output of session.outputNames) {
    const data = bytesOf(outputs[output].data);
    size += data.length;
    bits.update(data);
  }
  console.log(
    JSON.stringify({
      loaded_bytes: loaded - before,
      bytes: web ? after : after - before - size,
      load_seconds: loadSeconds,
      cpu_seconds: best,
      bits: bits.digest("hex"),
    }),
  );
}

main().catch((error) => {
  console.error(String(error).slice(0, 400));
  process.exit(1);
});
