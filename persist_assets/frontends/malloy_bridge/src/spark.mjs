// Malloy's Databricks dialect, mended where open-source Spark fails on it or answers otherwise than
// Malloy's other engines (tests/integration/test_malloy_oracle.py).
import {DatabricksDialect} from '@malloydata/malloy';

// Digits after the point that symmetric aggregates keep: as many as a double has. Malloy keeps eight.
const DIGITS = 15;

/** While `mended` is false, everything is written as Malloy itself would: BuildIDs are made of it. */
export class SparkDialect extends DatabricksDialect {
  mended = false;

  // Under ANSI, which protects from silent overflows, Spark raises where the others have NULL.
  exprToSQL(qi, expr) {
    if (!this.mended || (expr.node !== '/' && expr.node !== '%')) return super.exprToSQL(qi, expr);
    const {left, right} = expr.kids;
    return `${left.sql}${expr.node}NULLIF(${right.sql},0)`;
  }

  // A scale that is an INT overflows, so it is a decimal. A row whose value is NULL, filtered out,
  // say, does not count: taken for zero, beside rows of the same key that have a value, its hash
  // would be in the sum. The sum is an exact integer; read as text, it becomes the nearest double.
  sqlSumDistinct(key, value, name) {
    if (!this.mended) return super.sqlSumDistinct(key, value, name);
    const hash = this.sqlSumDistinctHashedKey(key);
    const distinct = sql => `SUM(DISTINCT CASE WHEN ${value} IS NOT NULL THEN ${sql} END)`;
    const scaled = `CAST(${value}*1${'0'.repeat(DIGITS)}.0 AS DECIMAL(38,0))`;
    const sum = `${distinct(`${hash} + ${scaled}`)} - ${distinct(hash)}`;
    const double = `CAST(CONCAT(CAST(${sum} AS STRING),'E-${DIGITS}') AS DOUBLE)`;
    if (name === 'SUM') return double;
    return `${double}/NULLIF(COUNT(DISTINCT CASE WHEN ${value} IS NOT NULL THEN ${key} END),0)`;
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
