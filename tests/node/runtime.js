// What a Malloy runtime makes of a manifest file: reads {files, tables, digest, stock, model,
// manifest, strict, queries} as JSON on stdin; with `stock`, the connection is Malloy's own for
// Databricks with this configuration, and its digest is that of the connection; `manifest` is the text of the file or null, `queries` are texts
// (`run: …`), `strict` overrides what the file says unless null. Prints {builds: name → BuildID by
// `makeDigest`, queries: [{sql} or {error}, …]}. For a list of such questions, prints a list.
const fs = require('fs');
const {InMemoryURLReader, Manifest, Runtime, makeDigest, mkFieldDef} = require('@malloydata/malloy');
const {BaseConnection} = require('@malloydata/malloy/connection');

const TYPES = {
  string: {type: 'string'},
  int: {type: 'number', numberType: 'integer'},
  bigint: {type: 'number', numberType: 'bigint'},
};

async function answer(asked) {
  const {files, tables, stock, model, manifest, strict, queries} = asked;
  const own = stock && new (require('@malloydata/db-databricks').DatabricksConnection)('spark', stock);
  const digest = own ? own.getDigest() : asked.digest;

  class Fixed extends BaseConnection {
    get name() {
      return 'spark';
    }
    get dialectName() {
      return own ? own.dialectName : 'databricks';
    }
    getDigest() {
      return digest;
    }
    fields(columns) {
      return columns.map(([name, type]) => mkFieldDef(TYPES[type], name));
    }
    async fetchTableSchema(name, tablePath) {
      const fields = this.fields(tables[tablePath]);
      return {type: 'table', name, tablePath, connection: 'spark', dialect: 'databricks', fields};
    }
    async fetchSelectSchema({connection, selectStr}) {
      const fields = this.fields(tables['']);
      return {type: 'sql_select', name: 's', connection, selectStr, dialect: 'databricks', fields};
    }
  }

  const urls = Object.entries(files).map(([path, text]) => ['file:///' + path, text]);
  const loaded = new Manifest();
  if (manifest !== null) loaded.loadText(manifest);
  if (strict !== null) loaded.strict = strict;
  const runtime = new Runtime({
    urlReader: new InMemoryURLReader(new Map(urls)),
    connection: new Fixed(),
    buildManifest: loaded.buildManifest,
  });
  const url = new URL('file:///' + model);
  const found = {builds: {}, queries: []};
  const {connections} = await runtime.getBuildTargets(await runtime.getModel(url));
  for (const {targets} of connections) {
    for (const {sql, sources} of targets) {
      for (const {sourceID} of sources) {
        found.builds[sourceID.replace('file:///', '')] = makeDigest(digest, sql);
      }
    }
  }
  for (const text of queries) {
    try {
      found.queries.push({sql: await runtime.loadModel(url).loadQuery(text).getSQL()});
    } catch (error) {
      found.queries.push({error: error.message});
    }
  }
  return found;
}

(async () => {
  const input = JSON.parse(fs.readFileSync(0, 'utf8'));
  const several = Array.isArray(input);
  const answers = [];
  for (const asked of several ? input : [input]) answers.push(await answer(asked));
  process.stdout.write(JSON.stringify(several ? answers : answers[0]));
})();
