// Malloy's own compiler, asked by lines of JSON on stdin, answering by lines on stdout.
//
// The first line is {ready}. A request {do, …} is answered by {answer} or {failed}; before that may
// come questions {ask, …}, each of which wants one line {told} or {refused}. Nothing overlaps.
import {createInterface} from 'node:readline';
import {writeSync} from 'node:fs';
import {compileModel, compileQuery, open} from './compile.mjs';
import {version as VERSION} from '../node_modules/@malloydata/malloy/package.json';

const DO = {open, model: compileModel, query: compileQuery};

function send(value) {
  const bytes = Buffer.from(JSON.stringify(value) + '\n');
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(1, bytes, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error; // a pipe that is full: its reader is slow
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

const lines = createInterface({input: process.stdin, crlfDelay: Infinity});
const waiting = [];
const arrived = [];
lines.on('line', line => (waiting.length ? waiting.shift()(line) : arrived.push(line)));
lines.on('close', () => process.exit(0));
const next = () =>
  arrived.length
    ? Promise.resolve(arrived.shift())
    : new Promise(resolve => waiting.push(resolve));

// Malloy asks for several things at once; the lines of one question must not meet another's.
let turn = Promise.resolve();
function ask(what, question) {
  const answer = turn.then(async () => {
    send({ask: what, ...question});
    const {told, refused} = JSON.parse(await next());
    if (refused !== undefined) throw new Error(refused);
    return told;
  });
  turn = answer.catch(() => undefined);
  return answer;
}

async function main() {
  send({ready: {node: process.versions.node, compiler: VERSION}});
  for (;;) {
    const {do: what, ...request} = JSON.parse(await next());
    try {
      send({answer: await DO[what](request, ask)});
    } catch (error) {
      send({failed: `${error?.stack ?? error}`});
    }
  }
}

main();
