// Opens a model as people deploy it in JavaScript, nothing set, runs it, and says what that took: in
// node (`process_client.cjs`) and on a page (`page_client.cjs`) alike.
"use strict";
(function (root) {
  const KINDS = {
    float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array,
    bool: Uint8Array, uint8: Uint8Array, int8: Int8Array,
  };

  // Memories of WebAssembly, seen as they are made; from now on.
  function watched() {
    const memories = [];
    const see = (values) => {
      for (const value of values) if (value instanceof WebAssembly.Memory) memories.push(value);
    };
    for (const call of ["instantiate", "instantiateStreaming"]) {
      const original = WebAssembly[call];
      if (!original) continue;
      WebAssembly[call] = async (...args) => {
        const made = await original.apply(WebAssembly, args);
        see(Object.values((made.instance || made).exports));
        for (const part of Object.values(args[1] || {})) see(Object.values(part));
        return made;
      };
    }
    return () => Math.max(0, ...memories.map((one) => one.buffer.byteLength));
  }

  // The code around the runtime, without what its memory grows by more than is asked for: up to a
  // fifth, by how the requests before it fell. One file has 176 MB on a page and 212 in node then.
  // Throws for code that says it in another way.
  function exactGrowth(code) {
    const exact = code.replace("(1+.2/", "(1+0/");
    if (exact === code) throw new Error("this onnxruntime-web lets its memory grow otherwise");
    return exact;
  }

  // A session of WebAssembly; `beside` are the bytes of NAME.data, if there are any.
  function opened(ort, name, bytes, beside) {
    ort.env.wasm.numThreads = 1;
    const options = { executionProviders: ["wasm"] };
    if (beside) options.externalData = [{ path: `${name}.data`, data: beside }];
    return ort.InferenceSession.create(bytes, options);
  }

  // `listed`: {name, type, dims, file}; `read` gives the ArrayBuffer of a file.
  async function tensors(ort, listed, read) {
    const feed = {};
    for (const { name, type, dims, file } of listed) {
      feed[name] = new ort.Tensor(type, new KINDS[type](await read(file)), dims);
    }
    return feed;
  }

  // Loads by `create` and runs; `held` gives bytes, `clock` seconds that pass while it runs.
  async function measured({ create, feed, runs, held, clock }) {
    const before = held();
    const began = performance.now();
    const session = await create();
    const load = (performance.now() - began) / 1e3;
    const loaded = held();
    let outputs = {};
    let best = Infinity;
    for (let i = 0; i < runs; i++) {
      outputs = {};
      const start = clock();
      outputs = await session.run(feed);
      best = Math.min(best, clock() - start);
    }
    const after = held();
    const parts = session.outputNames.map((name) => {
      const { buffer, byteOffset, byteLength } = outputs[name].data;
      return new Uint8Array(buffer, byteOffset, byteLength);
    });
    const size = parts.reduce((sum, part) => sum + part.length, 0);
    const all = new Uint8Array(size);
    let at = 0;
    for (const part of parts) {
      all.set(part, at);
      at += part.length;
    }
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", all));
    return {
      loaded_bytes: loaded - before,
      held_bytes: after,
      bytes: after - before - size,
      load_seconds: load,
      cpu_seconds: best,
      bits: [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join(""),
    };
  }

  const made = { exactGrowth, measured, opened, tensors, watched };
  if (typeof module !== "undefined") module.exports = made;
  else root.webClient = made;
})(globalThis);
