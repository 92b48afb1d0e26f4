// Loads a trace into Perfetto's trace processor and answers queries:
//
//	node query.cjs FOLDER TRACE SQL...
//
// FOLDER has engine_bundle.js and trace_processor.wasm, as Perfetto's own page loads them. For each
// query one line is printed: its rows, as JSON. An error of the trace processor ends it with 1.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [folder, trace, ...queries] = process.argv.slice(2);

// The messages are those of perfetto/protos/perfetto/trace_processor/trace_processor.proto.
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorRpc.TraceProcessorMethod
const VARINT = 0, FIXED64 = 1, BYTES = 2; // wire types

function varint(n) {
  const bytes = [];
  for (n = BigInt(n); n > 127n; n >>= 7n) bytes.push(Number(n & 127n) | 128);
  return Buffer.from([...bytes, Number(n)]);
}

const number = (field, n) => Buffer.concat([varint(field << 3 | VARINT), varint(n)]);
const bytes = (field, b) => Buffer.concat([varint(field << 3 | BYTES), varint(b.length), b]);

// read yields the fields of a message: a BigInt or a Buffer each.
function* read(b) {
  let at = 0;
  const next = () => {
    let n = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const c = b[at++];
      n |= BigInt(c & 127) << shift;
      if (c < 128) return n;
    }
  };
  while (at < b.length) {
    const tag = Number(next());
    switch (tag & 7) {
      case VARINT: yield [tag >> 3, next()]; break;
      case FIXED64: yield [tag >> 3, b.subarray(at, at += 8)]; break;
      case BYTES: {
        const n = Number(next());
        yield [tag >> 3, b.subarray(at, at += n)];
        break;
      }
      default: throw new Error(`wire type ${tag & 7}`);
    }
  }
}

function packed(b) {
  const list = [];
  for (let at = 0, n = 0n, shift = 0n; at < b.length; at++) {
    n |= BigInt(b[at] & 127) << shift;
    shift += 7n;
    if (b[at] < 128) { list.push(BigInt.asIntN(64, n)); n = shift = 0n; }
  }
  return list;
}

// take adds a QueryResult to an answer: it comes in pieces.
function take(b, answer) {
  for (const [field, value] of read(b)) {
    if (field === 1) answer.columns++;
    if (field === 2) throw new Error(String(value));
    if (field !== 3) continue;
    const batch = { kinds: [], numbers: [], reals: [], texts: [] };
    for (const [f, v] of read(value)) {
      switch (f) {
        case 1: batch.kinds = [...v]; break;
        case 2: batch.numbers = packed(v); break;
        case 3: for (let i = 0; i < v.length; i += 8) batch.reals.push(v.readDoubleLE(i)); break;
        case 5: batch.texts = v.toString().split('\0'); break;
        case 6: answer.done = v === 1n; break;
      }
    }
    for (const kind of batch.kinds) {
      switch (kind) {
        case 1: answer.cells.push(null); break;
        case 2: answer.cells.push(Number(batch.numbers.shift())); break;
        case 3: answer.cells.push(batch.reals.shift()); break;
        case 4: answer.cells.push(batch.texts.shift()); break;
        default: throw new Error(`a cell of kind ${kind}`);
      }
    }
  }
}

// The engine is the program of a web worker: this is what it needs of one.
class XMLHttpRequest {
  open(_, url) { this.url = url; }
  send() { this.response = fs.readFileSync(path.join(folder, path.basename(this.url))); }
}

const quiet = () => {};
const world = { XMLHttpRequest, TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout, crypto: globalThis.crypto,
  location: { href: 'file:///' }, WorkerGlobalScope: Object, console: { log: quiet, warn: quiet, error: console.error } };
world.self = world;
vm.createContext(world);
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), world);
const bytesOf = vm.runInContext('(b) => new Uint8Array(b)', world); // of its own kind

const port = {};
world.onmessage({ data: port });
let sequence = 0;

// call has the trace processor do something, which it does at once, and gives each part of its answer to f.
function call(method, argument, f) {
  port.postMessage = (answers) => {
    for (const [, rpc] of read(Buffer.from(answers))) {
      for (const [field, value] of read(rpc)) {
        if (field === 5) throw new Error(String(value)); // fatal_error
        f(field, value);
      }
    }
  };
  const rpc = Buffer.concat([number(1, sequence++), number(2, method), argument]);
  port.onmessage({ data: bytesOf(bytes(1, rpc)) });
}

// loaded looks for an error in what appending and finalizing say.
function loaded(field, value) {
  const error = { 201: 2, 212: 1 }[field];
  if (error) for (const [f, v] of read(value)) if (f === error) throw new Error(String(v));
}

// The engine is compiled by now; what it does then is done when this is called.
setImmediate(() => {
  try {
    call(APPEND, bytes(101, fs.readFileSync(trace)), loaded);
    call(FINALIZE, Buffer.alloc(0), loaded);
    for (const sql of queries) {
      const answer = { columns: 0, cells: [], done: false };
      call(QUERY, bytes(103, bytes(1, Buffer.from(sql))), (field, value) => field === 203 && take(value, answer));
      if (!answer.done) throw new Error(`no whole answer to ${sql}`);
      const rows = [];
      while (answer.cells.length > 0) rows.push(answer.cells.splice(0, answer.columns));
      console.log(JSON.stringify(rows));
    }
  } catch (e) {
    console.error(e.message.slice(0, 2000));
    process.exitCode = 1;
  }
});
