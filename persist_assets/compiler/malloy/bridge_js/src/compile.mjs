// Models and queries → what they define, its SQL and schema, and what is wrong with them.
//
// A path is one relative to the project root. For Malloy it is a URL below ROOT, so that nothing
// Malloy says holds a path of this machine, and what leads out of the project is not below ROOT.
import {
  Annotations,
  CacheManager,
  Explore,
  InMemoryModelCache,
  Malloy,
  MalloyError,
  PersistSource,
  Runtime,
  makeDigest,
  registerDialect,
} from '@malloydata/malloy';
import {BaseConnection} from '@malloydata/malloy/connection';
import {
  evaluateInlineGivens,
  resolveSuppliedGivens,
} from '../node_modules/@malloydata/malloy/dist/model/given_binding.js';
import {mendFilters} from './filters.mjs';
import {rememberStages} from './memo.mjs';
import {NESTED, SparkDialect, limitWithNullsLast} from './spark.mjs';
import {field} from './types.mjs';

const ROOT = 'persist:///@/';

// What we are told where the type of a column is not certain.
const UNCERTAIN = 'uncertain';

const spark = new SparkDialect();
registerDialect(spark);
rememberStages(() => spark.mended);
mendFilters();

// Malloy decodes URLs of imports, some of them twice: what it must not decode, or take for the end
// of a path, goes as a character that is for private use.
const PRIVATE = {'%': '\uE025', '#': '\uE023', '?': '\uE03F', '\\': '\uE05C'};
const PUBLIC = Object.fromEntries(Object.entries(PRIVATE).map(([from, to]) => [to, from]));
const reveal = text => text.replace(/[\uE025\uE023\uE03F\uE05C]/g, c => PUBLIC[c]);

const toUrl = path => new URL(ROOT + path.replace(/[%#?\\]/g, c => PRIVATE[c])).href;

function toPath(url) {
  if (!url.startsWith(ROOT)) return undefined;
  const path = url.slice(ROOT.length);
  try {
    return reveal(decodeURIComponent(path));
  } catch {
    return reveal(path);
  }
}

/** Return a SourceID with a path for the URL in it. */
function toSourceID(id) {
  const at = id.lastIndexOf('@' + ROOT);
  return `${id.slice(0, at)}@${toPath(id.slice(at + 1))}`;
}

class Asking extends BaseConnection {
  constructor(name, {dialect, digest}, ask) {
    super();
    Object.assign(this, {own: {name, dialect, digest}, ask, selected: new Map()});
  }
  get name() {
    return this.own.name;
  }
  get dialectName() {
    return this.own.dialect;
  }
  getDigest() {
    return this.own.digest;
  }
  async runSQL() {
    throw new Error('nothing is run here');
  }
  async fields(what, question) {
    let columns;
    try {
      columns = await this.ask(what, {connection: this.name, ...question});
    } catch (error) {
      session.refused.set(question.table ?? question.sql, error.message);
      throw error;
    }
    return columns.map(([name, type]) => field(name, type, spark));
  }
  async fetchTableSchema(name, tablePath) {
    const fields = await this.fields('table', {table: tablePath});
    const {name: connection, dialectName: dialect} = this;
    return {type: 'table', name, tablePath, connection, dialect, fields};
  }
  async fetchSelectSchema({connection, selectStr}) {
    const fields = await this.fields('select', {sql: selectStr});
    this.selected.set(selectStr, fields);
    const dialect = this.dialectName;
    return {type: 'sql_select', name: selectStr, connection, dialect, selectStr, fields};
  }
}

let session;

/** Forget everything; what is compiled from now on is compiled under these circumstances. */
export function open({connections, givens, virtual}, ask) {
  const texts = new Map();
  const urlReader = {
    async readURL(url) {
      const path = toPath(url.href);
      if (path === undefined) throw new Error('outside');
      if (!texts.has(path)) texts.set(path, await ask('file', {path}));
      return texts.get(path);
    },
  };
  const opened = new Map();
  for (const [name, about] of Object.entries(connections)) {
    opened.set(name, new Asking(name, about, ask));
  }
  const lookup = {
    async lookupConnection(name) {
      const found = name === undefined ? [...opened.values()][0] : opened.get(name);
      if (!found) throw new Error(`there is no connection \`${name}\``);
      return found;
    },
  };
  const runtime = new Runtime({
    urlReader,
    connections: lookup,
    cacheManager: new CacheManager(new InMemoryModelCache()),
  });
  const virtualMap = new Map(
    Object.entries(virtual).map(([name, tables]) => [name, new Map(Object.entries(tables))])
  );
  runtime.virtualMap = virtualMap;
  const digests = Object.fromEntries(
    Object.entries(connections).map(([name, {digest}]) => [name, digest])
  );
  session = {refused: new Map(), texts, urlReader, opened, runtime, virtualMap, digests, givens};
  session.parts = new Map(); // path → what in its model has columns that were asked for
  return {};
}

// ------------------------------------------------------------------------------------- places

/** Return where something is: lines and columns from one, columns in characters. */
function place(at, otherwise) {
  const known = at && toPath(at.url);
  const moment = at?.url.startsWith('internal:'); // a query that is in no file
  const path = moment ? 'query' : (known ?? otherwise);
  if (!moment && known === undefined) return {path, line: 1, column: 1};
  const {line, character} = at.range.start;
  const text = (moment ? session.moment : session.texts.get(path))?.split('\n')[line] ?? '';
  const column = [...text.slice(0, character)].length + 1;
  return {path, line: line + 1, column};
}

const SEVERITIES = {error: 'error', warn: 'warning', debug: 'note'};

function problem({code, message, severity = 'error', at, replacement, hint}, path) {
  const text = reveal(message.replaceAll(ROOT, '')).trim();
  const fix = hint ?? (replacement === undefined ? null : `write \`${replacement}\``);
  return {code, message: text, severity: SEVERITIES[severity], ...place(at, path), hint: fix};
}

/** Return what is wrong, in Malloy's words where it has some; it does not always say where. */
async function problems(error, path, where) {
  if (error instanceof MalloyError && error.problems.length) {
    return Promise.all(error.problems.map(p => translated(p, path, where)));
  }
  if (error instanceof RangeError) return [await circle(path, error)];
  const refused = await refusals(path);
  if (refused.length) return refused;
  if (/~malformed~/.test(error.message)) {
    const message = 'what a query reads is wrong, and Malloy does not say what';
    const hint = 'give what stands before its `->` a name of its own: source: NAME is …';
    return [problem({code: 'compiler', message, at: error.at, hint}, path)];
  }
  if (/^Model has no queries/.test(error.message)) {
    const message = 'this is no query';
    return [problem({code: 'no-query', message, hint: 'run: NAME -> { … }'}, path)];
  }
  const {code = 'compiler', message, at = where} = error;
  return [problem({code, message, at}, path)];
}

/** Say what only we know: what a connection is, and where the project ends. */
async function translated(found, path, where) {
  const {code, at, data} = found;
  if (code === 'compiler-bug' && found.message.includes(NESTED)) {
    const message = NESTED;
    return problem({code: 'nested-multi-stage-unsupported', message, at: at ?? where}, path);
  }
  if (code === 'import-error' && data?.url !== undefined && toPath(data.url) === undefined) {
    const message = 'this import leads out of the project';
    const hint = 'files below the project root can be imported, by relative paths';
    return problem({code: 'import-outside', message, at, hint}, path);
  }
  if (code === 'invalid-table-path') {
    const hint = "in backquotes a part of a name may hold anything: spark.table('`größen`')";
    return problem({...found, hint}, path);
  }
  if (code === 'sql-native-not-allowed-in-expression' && data?.rawType === UNCERTAIN) {
    const message = 'the type of this column is not certain: Malloy cannot compute with it';
    const hint = 'say what it is, `name::number`, or CAST(… AS …) where it is made';
    return problem({code: 'uncertain-type', message, at, hint}, path);
  }
  if (code === 'failed-to-fetch-table-schema' && at) {
    const {start} = at.range;
    for (const table of Object.values((await mentions(toPath(at.url) ?? path)).tables)) {
      const here = table.firstReference.start;
      if (here.line !== start.line || here.character !== start.character) continue;
      if (session.opened.has(table.connectionName)) continue;
      return unknown(table.connectionName, at, path);
    }
  }
  return problem(found, path);
}

/**
 * Return which tables and SELECTs there are not, of those that a file or what it imports names;
 * Malloy may fail over them without a word.
 */
async function refusals(path) {
  const found = [];
  const code = 'failed-to-fetch-table-schema';
  const files = new Set([path]);
  for (const file of files) {
    const url = toUrl(file);
    const {tables, urls} = await mentions(file).catch(() => ({tables: {}, urls: {}}));
    for (const written of Object.keys(urls)) {
      const imported = toPath(new URL(written, url).href);
      if (imported !== undefined) files.add(imported);
    }
    for (const {connectionName, tablePath, firstReference: range} of Object.values(tables)) {
      const at = range && {url, range};
      const message = session.refused.get(tablePath);
      if (!session.opened.has(connectionName)) found.push(unknown(connectionName, at, path));
      else if (message) found.push(problem({code, message, at}, path));
    }
    for (const [start, head] of selects(session.texts.get(file) ?? '')) {
      for (const [sql, message] of session.refused) {
        const at = {url, range: {start}};
        if (sql.trim().startsWith(head)) found.push(problem({code, message, at}, path));
      }
    }
  }
  if (found.length) return found;
  const told = [...new Set(session.refused.values())];
  return told.map(message => problem({code: 'failed-to-fetch-schema', message}, path));
}

/** Return where SELECTs stand in a text, with how each begins. */
function* selects(text) {
  for (const {index, 1: head} of text.matchAll(/\.sql\s*\(\s*"""((?:(?!%\{|""").)+)/gs)) {
    const before = text.slice(0, index).split('\n');
    yield [{line: before.length - 1, character: before.at(-1).length + 1}, head.trim()];
  }
}

function unknown(connection, at, path) {
  const message = `there is no connection \`${connection}\``;
  const hint = `there are: ${[...session.opened.keys()].join(', ')}`;
  return problem({code: 'unknown-connection', message, at, hint}, path);
}

/** Return what a file names without compiling it: imports, tables, connections. */
async function mentions(path) {
  const url = new URL(toUrl(path));
  const parsed = Malloy.parse({source: await session.urlReader.readURL(url), url});
  const step = parsed._translator.importsAndTablesStep;
  try {
    step.step(parsed._translator);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // a file that imports itself: the rest is there
  }
  return step.parseReferences ?? {tables: {}, urls: {}};
}

/** Return the circle of imports in which a file is; Malloy follows it until its stack is full. */
async function circle(path, error) {
  const imports = new Map();
  const walk = async (at, trail) => {
    if (trail.includes(at)) return [...trail.slice(trail.indexOf(at)), at];
    if (!imports.has(at)) imports.set(at, Object.entries((await mentions(at)).urls));
    for (const [written] of imports.get(at)) {
      const next = toPath(new URL(written, toUrl(at)).href);
      const found = next === undefined ? undefined : await walk(next, [...trail, at]);
      if (found) return found;
    }
    return undefined;
  };
  const found = await walk(path, []);
  if (!found) return problem({code: 'nesting', message: `too deeply nested: ${error.message}`}, path);
  const first = imports.get(found[0]).find(([w]) => toPath(new URL(w, toUrl(found[0])).href) === found[1]);
  const message = `files import each other in a circle: ${found.join(' → ')}`;
  const at = {url: toUrl(found[0]), range: first[1]};
  return problem({code: 'import-cycle', message, at}, path);
}

// -------------------------------------------------------------------------------------- schemas

function typeName(def) {
  switch (def.type) {
    case 'number':
      return def.numberType ?? 'number';
    case 'array': {
      const {elementTypeDef: element} = def;
      return `array<${element.type === 'record_element' ? record(def.fields) : typeName(element)}>`;
    }
    case 'record':
      return record(def.fields);
    case 'sql native':
      return def.rawType ?? 'unknown';
    default:
      return def.type;
  }
}

function record(fields) {
  return `struct<${columns(fields).map(([name, type]) => `${name}:${type}`).join(',')}>`;
}

const PERSISTABLE = ['sql_select', 'query_source'];
const TABLES = ['table', 'sql_select', 'query_source', 'composite', 'virtual', 'query_result'];

/** Return [name, type] of the fields that are in the rows themselves, not computed from them. */
function columns(fields) {
  return fields
    .filter(f => !('e' in f && f.e) && f.type !== 'turtle' && !TABLES.includes(f.type))
    .map(f => [f.as ?? f.name, typeName(f)]);
}

// -------------------------------------------------------------------------------------- sources

/** Return what `write` returns while Spark's SQL is written as Spark wants it. */
function mended(write) {
  spark.mended = true;
  try {
    return write();
  } finally {
    spark.mended = false;
  }
}

/**
 * Whether a note stands above a definition, or above the statement that it is part of. What extends
 * another definition and has no notes has that one's, and Malloy does not call them inherited.
 */
function isOwn(at, location, ofStatement) {
  if (!at || !location || at.url !== location.url) return !at;
  const {end} = at.range;
  const {start} = location.range;
  const lines = session.texts.get(toPath(at.url))?.split('\n').slice(end.line, start.line + 1) ?? [];
  lines.push(lines.pop()?.slice(0, start.character) ?? '');
  const between = lines.map(line => line.replace(/(#|\/\/|--).*/, '')).join('\n');
  if (!ofStatement && /\bis\b/.test(between)) return false;
  return (between.match(/\b(source|query|run|import|given)\s*:/g) ?? []).length <= 1;
}

function annotations(def, path) {
  const found = [];
  const collect = (notes, inherited) => {
    if (notes?.inherits) collect(notes.inherits, true);
    for (const of of ['blockNotes', 'notes']) {
      for (const {text, at} of notes?.[of] ?? []) {
        const others = inherited || !isOwn(at, def.location, of === 'blockNotes');
        found.push({text: text.replace(/\r?\n$/, ''), inherited: others, ...place(at, path)});
      }
    }
  };
  collect(def.annotations, false);
  return found;
}

/** Return what a definition of a file is called, where it is and what its annotations say. */
function definition(name, def, path) {
  const {tag, log} = new Annotations(def.annotations).parseAsTag('@');
  return {
    name,
    ...place(def.location, path),
    annotations: annotations(def, path),
    persist: tag.has('persist'),
    problems: log.map(p => problem(p, path)),
  };
}

function hasFlag(model) {
  return model.modelAnnotations.parseAsTag('!').tag.has('experimental', 'persistence');
}

/**
 * Return the BuildID by which the compiler looks a source up while it writes SQL.
 *
 * Where SQL holds queries, %{ … }, that is another text than the one that Malloy's BuildID is made
 * of, and mended SQL is another one always. So the compiler is asked.
 */
function soughtBy(model, def) {
  const {virtualMap, digests} = session;
  const entries = new Proxy({}, {
    get(_, buildId) {
      throw new Sought(buildId); // all below it would be written too, and nobody wants that
    },
  });
  const buildManifest = {entries, strict: false};
  const queryFields = columns(def.fields).map(([name]) => ({type: 'fieldref', path: [name]}));
  const all = {type: 'query', structRef: def, pipeline: [{type: 'project', queryFields}]};
  const options = {virtualMap, connectionDigests: digests, buildManifest};
  try {
    model.queryModel.compileQuery(all, options, false);
  } catch (error) {
    if (error instanceof Sought) return error.buildId;
    throw error;
  }
  return undefined;
}

/** Is thrown out of the compiler; no Error, whose stack nobody wants to know. */
class Sought {
  constructor(buildId) {
    this.buildId = buildId;
  }
}

/** Yield each object that a model's definitions are made of. */
function* partsOf(model) {
  const seen = new Set();
  const waiting = [model._modelDef];
  while (waiting.length) {
    const at = waiting.pop();
    if (at === null || typeof at !== 'object' || seen.has(at)) continue;
    seen.add(at);
    yield at;
    waiting.push(...(at instanceof Map ? at.values() : Object.values(at)));
  }
}

/**
 * Return everything persisted that a model reaches, by Malloy's SourceID: in dependency order, and
 * after that what only compose() leads to, of which Malloy's own walk knows nothing.
 */
async function persistedIn(model, path) {
  const found = new Map();
  if (!hasFlag(model)) return found;
  const leads = new Map(); // SourceID → the persisted sources that a reader of it reads
  const enter = async (id, source, reads) => {
    const {virtualMap, digests} = session;
    const entry = {source, reads, problems: []};
    found.set(id, entry);
    try {
      const digest = digests[source.connectionName];
      entry.sql = source.getSQL({virtualMap});
      entry.buildId = makeDigest(digest, entry.sql);
      entry.runtimeId = soughtBy(model, source._sourceDef);
      entry.sought = mended(() => soughtBy(model, source._sourceDef));
    } catch (error) {
      const {location} = source;
      entry.problems = await problems(error, toPath(location?.url ?? '') ?? path, location);
    }
  };
  for (const {sourceID, persistent, dependsOn} of model._walkPersistSources([])) {
    const reads = [...new Set(dependsOn.flatMap(id => leads.get(id) ?? []))];
    const source = persistent ? model._persistSourceFor(sourceID) : undefined;
    leads.set(sourceID, source ? [sourceID] : reads);
    if (source) await enter(sourceID, source, reads);
  }
  for (const at of persistentIn(model)) {
    if (at.sourceID && !found.has(at.sourceID)) await enter(at.sourceID, sourceOf(model, at), []);
  }
  return found;
}

/** Return the definitions in a model that Malloy's compiler looks up in a manifest. */
function persistentIn(model) {
  return [...partsOf(model)].filter(at => at.persistent && PERSISTABLE.includes(at.type));
}

function sourceOf(model, def) {
  return new PersistSource(new Explore(model._modelDef, def), model);
}

const quoted = name => '`' + name.replaceAll('`', '``') + '`';

/**
 * Return a manifest by which what is persisted is read from a table called by its SourceID.
 * Sources of one BuildID are one table, called by the first of them.
 */
function manifestFor(model, persisted) {
  const isOne = toldByValues(model);
  const entries = {};
  for (const [id, {sought}] of persisted) {
    if (sought !== undefined && isOne(sought)) {
      entries[sought] ??= {tableName: quoted(toSourceID(id))};
    }
  }
  return {entries, strict: false};
}

/**
 * Return whether all that the compiler looks up by a BuildID has the same rows.
 *
 * It looks sources up by their SQL without values: where the values of givens are all that tells two
 * of them apart, a reader of one would be given the other. Their readers compute them instead.
 */
function toldByValues(model) {
  let resolvedGivens;
  try {
    resolvedGivens = bound(model);
  } catch {
    return () => false; // it is told where sources are compiled
  }
  if (!resolvedGivens) return () => true;
  const {virtualMap} = session;
  const known = new Map(); // BuildID → SQL; null: there are several
  for (const {join, onExpression, ...def} of persistentIn(model)) {
    let sought;
    let sql = null;
    try {
      sought = mended(() => soughtBy(model, def));
      sql = sourceOf(model, def).getSQL({virtualMap, resolvedGivens});
    } catch {
      if (sought === undefined) return () => false; // nobody knows where it is looked up
    }
    known.set(sought, known.has(sought) && known.get(sought) !== sql ? null : sql);
  }
  return sought => known.get(sought) !== null;
}

/** Return the values of those givens of the session that a model knows; Malloy refuses others. */
function knownGivens(model) {
  const known = Object.entries(session.givens).filter(([given]) => model.givens.has(given));
  return Object.fromEntries(known);
}

/** Return the givens of a model with the session's values, as the compiler wants them. */
function bound(model) {
  const found = resolveSuppliedGivens(knownGivens(model), model._modelDef);
  evaluateInlineGivens(found, model._modelDef);
  return found.size ? found : undefined;
}

/** Return the names of columns by which a source, as it is extended, means something else. */
function redefined(def, columns) {
  const others = def.fields.filter(f => ('e' in f && f.e) || (f.as ?? f.name) !== f.name);
  const names = new Set(others.map(f => f.as ?? f.name));
  return columns.map(([name]) => name).filter(name => names.has(name));
}

async function source(name, def, path, model, persisted, manifest) {
  const about = {
    ...definition(name, def, path),
    source_id: toSourceID(def.sourceID ?? `${name}@${toUrl(path)}`),
    kind: def.type,
    connection: def.connection,
    table: def.type === 'table' ? def.tablePath : null,
    parameters: Object.keys(def.parameters ?? {}),
    filtered: (def.filterList ?? []).length > 0,
    redefined: [],
    build_id: null,
    runtime_id: null,
    malloy_sql: null,
    sql: null,
    reads: [],
    columns: columns(def.fields),
  };
  if (!PERSISTABLE.includes(def.type)) return about;
  const {virtualMap, digests, opened} = session;
  const entry = persisted.get(def.sourceID);
  about.problems.push(...(entry?.problems ?? []));
  if (entry?.problems.length) return about;
  if (entry) {
    about.build_id = entry.buildId;
    about.runtime_id = entry.runtimeId;
    about.malloy_sql = entry.sql;
    // A source that only extends another is the same table, and does not read it.
    const others = entry.reads.filter(id => persisted.get(id).buildId !== entry.buildId);
    about.reads = others.map(toSourceID);
  }
  try {
    const whole = model._persistSourceFor(def.sourceID);
    const resolvedGivens = bound(model);
    const given = {virtualMap, resolvedGivens, buildManifest: manifest, connectionDigests: digests};
    about.sql = limitWithNullsLast(mended(() => whole.getSQL(given)));
    // Malloy's BuildID knows nothing of values: by it, another one's table would be found.
    if (entry && entry.sql !== whole.getSQL({virtualMap, resolvedGivens})) {
      about.build_id = about.runtime_id = null;
    }
    const selected = opened.get(def.connection)?.selected.get(def.selectStr);
    if (def.type === 'sql_select' && selected) about.columns = columns(selected);
    if (def.type === 'query_source') {
      const {structs} = model.queryModel.compileQuery(def.query, {virtualMap, resolvedGivens}, false);
      about.columns = columns(structs.at(-1).fields);
    }
    about.redefined = redefined(def, about.columns);
  } catch (error) {
    about.problems.push(...(await problems(error, path, def.location)));
  }
  return about;
}

/** Return the tables and the SELECTs whose columns some files were compiled with. */
async function restsOn(paths) {
  const tables = new Set();
  const selects = new Set();
  for (const path of paths) {
    // What nobody uses is in no model but its own, and yet that has to compile.
    if (!session.parts.has(path)) {
      const model = await session.runtime.getModel(new URL(toUrl(path)));
      session.parts.set(path, [...partsOf(model)].filter(at => at.tablePath || at.selectStr));
    }
    for (const {type, tablePath, selectStr} of session.parts.get(path)) {
      if (type === 'table' && typeof tablePath === 'string') tables.add(tablePath);
      if (type === 'sql_select' && typeof selectStr === 'string') selects.add(selectStr);
    }
  }
  return {tables: [...tables], selects: [...selects]};
}

/** Compile one file: everything that it defines itself. */
export async function compileModel({path}) {
  const answer = {path, flag: false, sources: [], queries: [], problems: []};
  Object.assign(answer, {givens: [], files: [], tables: [], selects: []});
  let model;
  session.refused.clear();
  try {
    model = await session.runtime.getModel(new URL(toUrl(path)));
  } catch (error) {
    answer.problems = await problems(error, path);
    return answer;
  }
  answer.flag = hasFlag(model);
  answer.problems = model.problems.map(p => problem(p, path));
  answer.givens = [...model.givens.keys()];
  answer.files = [...new Set([toUrl(path), ...model.fromSources])].map(toPath);
  Object.assign(answer, await restsOn(answer.files));
  const persisted = await persistedIn(model, path);
  const manifest = manifestFor(model, persisted);
  for (const [name, def] of Object.entries(model._modelDef.contents)) {
    if (toPath(def.location?.url ?? '') !== path) continue;
    if (def.type === 'query') answer.queries.push(definition(name, def, path));
    else if (TABLES.includes(def.type)) {
      answer.sources.push(await source(name, def, path, model, persisted, manifest));
    }
  }
  return answer;
}

/** Compile one query: a named one of a file, or one written for the moment. */
export async function compileQuery({path, name, text}) {
  const answer = {sql: null, connection: null, columns: [], problems: []};
  session.moment = text;
  let where;
  try {
    const loaded = session.runtime.loadModel(new URL(toUrl(path)));
    const model = await loaded.getModel();
    const persisted = await persistedIn(model, path);
    const options = {givens: knownGivens(model)};
    if (persisted.size) options.buildManifest = manifestFor(model, persisted);
    const {contents} = model._modelDef;
    const names = Object.keys(contents).filter(n => contents[n].type === 'query');
    if (text === null && !names.includes(name)) {
      const message = `there is no query \`${name}\``;
      const hint = names.length ? `there are: ${names.join(', ')}` : 'query: NAME is …';
      answer.problems = [problem({code: 'unknown-query', message, hint}, path)];
      return answer;
    }
    if (text === null) where = contents[name].location;
    const query = text === null ? loaded.loadQueryByName(name) : loaded.loadQuery(text);
    await query.getPreparedQuery(); // in Malloy's own words up to here
    spark.mended = true;
    const result = await query.getPreparedResult(options);
    answer.sql = limitWithNullsLast(result.sql);
    answer.connection = result.connectionName;
    answer.columns = columns(result._rawQuery.structs.at(-1).fields);
  } catch (error) {
    answer.problems = await problems(error, text === null ? path : 'query', where);
  } finally {
    spark.mended = false;
  }
  return answer;
}
