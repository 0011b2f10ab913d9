// Malloy's compiler writes the SQL of a source anew for each source above it, and to look a source
// up in a manifest it writes all SQL below it: in a chain of sources that grows with the cube of
// its length. Here the stages of one query are written once, and repeated where they would be the
// same.
import {QueryQuery} from '../node_modules/@malloydata/malloy/dist/model/query_query.js';

// What the SQL of a query depends on, besides its model; with any other option nothing is repeated.
const OPTIONS = ['virtualMap', 'buildManifest', 'connectionDigests', 'resolvedGivens', 'isPartialQuery'];

const ids = new WeakMap();
let last = 0;

/** Return a text that tells this value from all others. */
function identity(value) {
  if (value === null || typeof value !== 'object') return String(value);
  if (!ids.has(value)) ids.set(value, ++last);
  return `#${ids.get(value)}`;
}

/** Return what tells the circumstances of a compilation apart; undefined where that is unknown. */
function circumstances(query, options, writer, isJoined, mode) {
  const isKnown = Object.keys(options).every(o => OPTIONS.includes(o) || options[o] === undefined);
  if (!isKnown || typeof (query.compositeResolvedSourceDef ?? query.structRef) === 'string') {
    return undefined;
  }
  if (writer && (!writer.useCTE || writer.parent || writer.stageNumber !== writer.withs.length)) {
    return undefined;
  }
  const names = writer ? writer.stagePrefix + writer.stageNumber : 'alone';
  return [mode, names, isJoined, ...OPTIONS.map(o => identity(options[o]))].join(' ');
}

/**
 * Let Malloy's compiler remember the stages of queries.
 *
 * `mode` returns what the SQL depends on besides the query: how the dialect writes.
 */
export function rememberStages(mode) {
  const compile = QueryQuery.prototype.compileQueryToStages;
  const queries = new WeakMap(); // query → circumstances → stages
  QueryQuery.prototype.compileQueryToStages = function (query, options, writer, isJoined) {
    const known = circumstances(query, options, writer, isJoined, mode());
    if (known === undefined) return compile.call(this, query, options, writer, isJoined);
    if (!queries.has(query)) queries.set(query, new Map());
    const found = queries.get(query);
    if (!found.has(known)) {
      const before = writer && [writer.withs.length, writer.udfs.length, writer.pdts.length];
      const result = compile.call(this, query, options, writer, isJoined);
      if (!writer) {
        found.set(known, {lastStageName: result.lastStageName, sql: result.sql});
      } else if (writer.udfs.length === before[1] && writer.pdts.length === before[2]) {
        const {lastStageName} = result;
        found.set(known, {lastStageName, stages: writer.withs.slice(before[0])});
      }
      return result;
    }
    const {stages, ...result} = found.get(known);
    for (const stage of stages ?? []) writer.addStage(stage);
    return writer ? {...result, stageWriter: writer, sql: undefined} : result;
  };
}
