// Answers of Malloy's own tag parser: reads [[line, …], …] as JSON on stdin, prints for each case
// either the places of the errors or the tree.
const {MOTLYSession, isRef, isEnvRef} = require('@malloydata/motly-ts-parser');

function plain(node) {
  if (isRef(node)) return {ref: true};
  const out = {};
  if (node.eq !== undefined) {
    if (Array.isArray(node.eq)) out.eq = node.eq.map(plain);
    else if (isEnvRef(node.eq)) out.eq = {env: node.eq.env};
    else if (node.eq instanceof Date) out.eq = {date: node.eq.toISOString()};
    else out.eq = node.eq;
  }
  if (node.properties !== undefined) {
    out.properties = Object.fromEntries(
      Object.entries(node.properties).map(([key, value]) => [key, plain(value)])
    );
  }
  if (node.deleted) out.deleted = true;
  return out;
}

const cases = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const answers = cases.map(lines => {
  const session = new MOTLYSession();
  const errors = lines.flatMap((line, n) =>
    session.parse(line).errors.map(e => ({line: n, column: e.begin.column}))
  );
  const result = session.finish();
  errors.push(...result.errors.map(e => ({code: e.code})));
  return {errors, value: errors.length ? null : plain(result.getValue())};
});
process.stdout.write(JSON.stringify(answers));
