// Malloy's Databricks dialect, mended where open-source Spark fails on it or answers otherwise than
// Malloy's other engines (tests/integration/test_malloy_oracle.py).
import {DatabricksDialect} from '@malloydata/malloy';

// Digits after the point that symmetric aggregates keep: as many as a double has. Malloy keeps eight.
const DIGITS = 15;

// The integers that a double holds exactly are smaller; any larger double is an integer.
const EXACT = '9007199254740992';

/** Return the SQL of a function in which `${NAME}` is a parameter, and `${order_by:}` its order. */
function template(sql) {
  const parts = sql.split(/\$\{(\w+:?)\}/);
  const argument = name =>
    name === 'order_by:' ? {node: 'aggregate_order_by'} : {node: 'function_parameter', name};
  const args = parts.filter((_, i) => i % 2).map(argument);
  return {node: 'genericSQLExpr', kids: {args}, src: parts.filter((_, i) => i % 2 === 0)};
}

const SCALED = '(${value})*POW(10,${precision})';
const TRUNCATED = template(
  `CAST(CASE WHEN ABS(${SCALED})>=${EXACT} THEN \${value} ` +
    `ELSE CAST(${SCALED} AS BIGINT)/POW(10,\${precision}) END AS DOUBLE)`
);
// Integers of which a double would lose digits are divided as integers; Spark knows the types.
const DIVIDED = template(
  "CASE WHEN CONCAT(TYPEOF(${dividend}),TYPEOF(${divisor})) RLIKE '^((tiny|small|big)?int){2}$'" +
    ' THEN CAST(${dividend} AS BIGINT) DIV NULLIF(CAST(${divisor} AS BIGINT),0)' +
    ' ELSE CAST((${dividend})/NULLIF(${divisor},0) AS BIGINT) END'
);
// Spark's CHR takes its argument modulo 256.
const CHARACTER = template(
  "CASE WHEN ${value}=0 THEN '' ELSE DECODE(UNHEX(LPAD(HEX(CAST(${value} AS BIGINT)),8,'0')),'UTF-32') END"
);
// The same as `javaReplacement`, for a text that is known when the query runs.
const REPLACED = template(
  "REGEXP_REPLACE(${value},${pattern},REGEXP_REPLACE(REPLACE(${replacement},'$','\\\\$')," +
    "'(?<!\\\\\\\\)((?:\\\\\\\\\\\\\\\\)*)\\\\\\\\([0-9])','$1\\\\$$2'))"
);

// Without an order, Malloy collects a list; that has none. Of no rows both are an empty string.
const listed = (distinct, separator) =>
  template(`COALESCE(LISTAGG(${distinct}\${value},${separator}) WITHIN GROUP (\${order_by:}),'')`);
const LISTED = {
  string_agg: [listed('', "','"), listed('', '${separator}')],
  string_agg_distinct: [listed('DISTINCT ', "','"), listed('DISTINCT ', '${separator}')],
};

const isPattern = parameter => parameter.allowedTypes.some(t => t.type === 'regular expression');

/** Return a replacement as Java writes it: `$1` for the group `\\1`, and `\\$` for `$`. */
function javaReplacement(text) {
  const parts = text.match(/\\[0-9][0-9]?|\\.|[^]/gs) ?? [];
  return parts
    .map(part => {
      if (part === '$') return '\\$';
      // Java would read two digits as one number.
      return part.replace(/^\\([0-9])([0-9])?$/, (_, group, digit) => `$${group}${digit ? `\\${digit}` : ''}`);
    })
    .join('');
}

// How Malloy numbers the rows of a nest with a limit.
const NUMBERED = /( ORDER BY(?:,? +`(?:[^`]|``)+` \w+)+)(?=\) END  as __row_number__)/g;

/** Return SQL in which NULL comes last where the rows of a nest with a limit are numbered. */
export function limitWithNullsLast(sql) {
  return sql.replace(NUMBERED, order => order.replace(/` \w+(?=,|$)/g, '$& NULLS LAST'));
}

/**
 * Return SQL after a minus sign, not so close that both would begin a comment, as in `x - -1`.
 * Other SQL stays as it is, and so do BuildIDs.
 */
const afterMinus = sql => (sql?.startsWith('-') ? ` ${sql}` : sql);

// A number, a text, a date or a word: SQL that means the same beside any operator.
const ATOM = /^(-?[\w.]+|(\w+ )?'([^'\\]|\\.)*')$/s;

/** Put what parameters and givens stand for in brackets; Malloy does so with all other operands. */
function bracketValues({e, kids = {}}) {
  for (const operand of [e, ...Object.values(kids).flat()]) {
    const isValue = operand?.node === 'parameter' || operand?.node === 'given';
    if (isValue && !ATOM.test(operand.sql)) operand.sql = `(${operand.sql})`;
  }
}

/** What is wrong with SQL that is not written. */
export const NESTED = "Spark cannot run a pipeline ('->') inside a nest";

/** While `mended` is false, everything is written as Malloy itself would: BuildIDs are made of it. */
export class SparkDialect extends DatabricksDialect {
  mended = false;

  // Whether the filter that is written next is one of `!~`; see `mendFilters`.
  negates = false;

  // Malloy refuses the whole file where a view has such a pipeline; so only what needs it is refused.
  supportsPipelinesInViews = true;

  sqlUnnestPipelineHead() {
    throw Object.assign(new Error(NESTED), {code: 'nested-multi-stage-unsupported'});
  }

  // Under ANSI, which protects from silent overflows, Spark raises where the others have NULL.
  exprToSQL(qi, expr) {
    if (expr.node === 'function_call') {
      if (this.mended) this.mendCall(expr);
      if (this.mended) this.orderWithNullsLast(expr);
      // Malloy itself has no SQL for it, so no BuildID either.
      const listed = expr.kids.orderBy?.length && LISTED[expr.name];
      if (listed) this.write(expr, listed[expr.kids.args.length - 1]);
    }
    if (this.mended) bracketValues(expr);
    if (expr.node === 'filterMatch') this.negates = this.mended && expr.notMatch === true;
    return (this.mended && this.mendedOperator(expr)) || super.exprToSQL(qi, expr);
  }

  /** Return the SQL of an operator; undefined: it is written as Malloy does. */
  mendedOperator({node, kids, e}) {
    if (node === '/' || node === '%') return `${kids.left.sql}${node}NULLIF(${kids.right.sql},0)`;
    if (node === '-') return `${kids.left.sql}-${afterMinus(kids.right.sql)}`;
    if (node === 'unary-') return `-${afterMinus(e.sql)}`;
    return undefined;
  }

  getDialectFunctions() {
    const functions = super.getDialectFunctions();
    for (const name of Object.keys(LISTED)) {
      functions[name] = functions[name].map(overload => ({...overload, supportsOrderBy: true}));
    }
    return functions;
  }

  // Malloy truncates and divides downwards, in doubles; a replacement is written as in Java there.
  mendCall(call) {
    const {args} = call.kids;
    let written;
    if (call.name === 'trunc' && args.length === 2) written = TRUNCATED;
    if (call.name === 'chr') written = CHARACTER;
    if (call.name === 'div') written = DIVIDED;
    if (call.name === 'replace' && isPattern(call.overload.params[1])) {
      const [, , replacement] = args;
      if (replacement.node === 'stringLiteral') {
        replacement.literal = javaReplacement(replacement.literal);
      } else {
        written = REPLACED;
      }
    }
    if (written) this.write(call, written);
  }

  /** Let the order of a call have NULL last, as Spark does only where it descends. */
  orderWithNullsLast(call) {
    const {args, orderBy} = call.kids;
    // Of distinct texts, Spark wants no other order than their own; and NULL is none of them.
    if (!orderBy?.length || call.name === 'string_agg_distinct') return;
    const first = call.overload.dialect[this.name].defaultOrderByArgIndex ?? 0;
    const isNull = by => ({
      node: 'functionOrderBy',
      e: {node: 'genericSQLExpr', kids: {args: [by.e ?? args[first]]}, src: ['(', ') IS NULL']},
    });
    call.kids = {...call.kids, orderBy: orderBy.flatMap(by => (by.dir === 'desc' ? [by] : [isNull(by), by]))};
  }

  /** Let a call be written by a template. */
  write(call, written) {
    const {overload} = call;
    const implementation = {...overload.dialect[this.name], e: written};
    call.overload = {...overload, dialect: {...overload.dialect, [this.name]: implementation}};
  }

  // Of a second Spark tells its parts too: groups by it would be others.
  sqlTimeExtractExpr(qi, extract) {
    const sql = super.sqlTimeExtractExpr(qi, extract);
    return this.mended && extract.units === 'second' ? `CAST(${sql} AS INT)` : sql;
  }

  // Whole units between two times, less than none where they go back: Malloy's are rounded down,
  // and decimals, which are text in JSON.
  sqlMeasureTimeExpr(difference) {
    const sql = super.sqlMeasureTimeExpr(difference);
    return this.mended ? sql.replace(/^FLOOR\((.*)\/(\d+)\.0\)$/s, '($1 DIV $2)') : sql;
  }

  // A scale that is an INT overflows, so it is a decimal. A row whose value is NULL, filtered out,
  // say, does not count: taken for zero, beside rows of the same key that have a value, its hash
  // would be in the sum. The sum is an exact integer; read as text, it becomes the nearest double.
  // Rows without a key count too, each value once, as in DuckDB: no key is a number without `=`.
  sqlSumDistinct(key, expression, name) {
    if (!this.mended) return super.sqlSumDistinct(key, expression, name);
    const value = `(${expression})`;
    const known = `COALESCE(CONCAT('=',CAST(${key} AS STRING)),CAST(${value} AS STRING))`;
    const hash = this.sqlSumDistinctHashedKey(known);
    const distinct = sql => `SUM(DISTINCT CASE WHEN ${value} IS NOT NULL THEN ${sql} END)`;
    const scaled = `CAST(${value}*1${'0'.repeat(DIGITS)}.0 AS DECIMAL(38,0))`;
    const sum = `${distinct(`${hash} + ${scaled}`)} - ${distinct(hash)}`;
    const double = `CAST(CONCAT(CAST(${sum} AS STRING),'E-${DIGITS}') AS DOUBLE)`;
    if (name === 'SUM') return double;
    return `${double}/NULLIF(COUNT(DISTINCT CASE WHEN ${value} IS NOT NULL THEN ${known} END),0)`;
  }

  // NULL comes last in every order. Malloy's Databricks dialect says so only at the end of a query;
  // see also `orderWithNullsLast` and `limitWithNullsLast`.
  sqlOrderBy(terms, of) {
    return super.sqlOrderBy(terms, this.mended ? 'query' : of);
  }

  // In a time zone, instants become dates otherwise than all else does, so it has to be known that
  // they are instants.
  sqlCast(qi, cast) {
    const {srcType, dstType, e} = cast;
    const native = (srcType ?? e.typeDef)?.type === 'sql native';
    if (this.mended && native && qi.queryTimezone && /^(date|timestamp)$/.test(dstType?.type)) {
      throw new Error(`what becomes a ${dstType.type} in a time zone wants a type that is certain`);
    }
    return super.sqlCast(qi, cast);
  }

  // Spark takes no JOIN after LATERAL VIEW. This is planned as the same Generate; with LEFT JOIN
  // LATERAL, or with ON, it would be a join by the values of whole arrays.
  sqlUnnestAlias(source, alias, fields, needDistinctKey, isArray, nested) {
    if (!this.mended) {
      return super.sqlUnnestAlias(source, alias, fields, needDistinctKey, isArray, nested);
    }
    const row = needDistinctKey ? `__row_id_from_${alias}, ` : '';
    const explode = needDistinctKey ? 'POSEXPLODE_OUTER' : 'EXPLODE_OUTER';
    const as = isArray ? `${alias}(${row}value)` : `${alias}_outer(${row}${alias})`;
    return `CROSS JOIN LATERAL ${explode}(${source}) AS ${as}`;
  }
}
