// BuildIDs as Malloy's own builder sees them: reads {files, tables, digest, model} as JSON on
// stdin, prints SourceID → {buildId, sql}.
const fs = require('fs');
const {InMemoryURLReader, Runtime, mkFieldDef} = require('@malloydata/malloy');
const {BaseConnection} = require('@malloydata/malloy/connection');

const {files, tables, digest, model} = JSON.parse(fs.readFileSync(0, 'utf8'));
const TYPES = {
  string: {type: 'string'},
  int: {type: 'number', numberType: 'integer'},
  bigint: {type: 'number', numberType: 'bigint'},
  double: {type: 'number', numberType: 'float'},
  date: {type: 'date'},
  timestamp: {type: 'timestamp'},
};

class Fixed extends BaseConnection {
  get name() {
    return 'spark';
  }
  get dialectName() {
    return 'databricks';
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

(async () => {
  const urls = Object.entries(files).map(([path, text]) => ['file:///' + path, text]);
  const runtime = new Runtime({
    urlReader: new InMemoryURLReader(new Map(urls)),
    connection: new Fixed(),
  });
  const compiled = await runtime.getModel(new URL('file:///' + model));
  const {connections} = await runtime.getBuildTargets(compiled);
  const found = {};
  for (const {targets} of connections) {
    for (const {buildId, sql, sources} of targets) {
      for (const s of sources) found[s.sourceID.replace('file:///', '')] = {buildId, sql};
    }
  }
  process.stdout.write(JSON.stringify(found));
})();
