// Names of Spark's types → Malloy's definitions of fields.
import {mkArrayDef, mkFieldDef} from '@malloydata/malloy';

const TOKEN = /\s*(`(?:[^`]|``)*`|[<>,:()]|[^<>,:()\s`]+)/y;

/** Return Malloy's field for a column of a Spark type such as `array<struct<a:int>>`. */
export function field(name, type, dialect) {
  const tokens = [];
  TOKEN.lastIndex = 0;
  for (let at = 0; at < type.length; at = TOKEN.lastIndex) {
    const found = TOKEN.exec(type);
    if (!found) break;
    tokens.push(found[1]);
  }
  return mkFieldDef(read(tokens, dialect), name);
}

function read(tokens, dialect) {
  const word = (tokens.shift() ?? '').toLowerCase();
  if (word === 'array' && tokens[0] === '<') {
    tokens.shift();
    const element = read(tokens, dialect);
    tokens.shift();
    return mkArrayDef(element, 'element');
  }
  if (word === 'struct' && tokens[0] === '<') {
    const fields = [];
    while (tokens.length && tokens[0] !== '>') {
      tokens.shift(); // < or ,
      const raw = tokens.shift() ?? '';
      const name = raw.startsWith('`') ? raw.slice(1, -1).replaceAll('``', '`') : raw;
      tokens.shift(); // :
      fields.push(mkFieldDef(read(tokens, dialect), name));
    }
    tokens.shift();
    return {type: 'record', join: 'one', name: 'record', fields};
  }
  let rest = '';
  if (tokens[0] === '(' || tokens[0] === '<') {
    let depth = 0;
    do {
      const token = tokens.shift() ?? '';
      if (token === '(' || token === '<') depth++;
      if (token === ')' || token === '>' || !tokens.length) depth--;
      rest += token;
    } while (depth > 0);
  }
  return dialect.sqlTypeToMalloyType(word + rest);
}
