// Malloy's filter expressions, `x ~ f'…'`, mended where Malloy's compiler writes other SQL than the
// expression means, on every engine: it forgets the `!` of `!~`, and brackets around what holds if
// one of several parts does, and its quarters begin in March, June and September.
import {
  FilterCompilers,
  TemporalFilterCompiler,
} from '../node_modules/@malloydata/malloy/dist/model/filter_compilers.js';

// The first month of each quarter.
const MONTHS = {1: '01', 2: '04', 3: '07', 4: '10'};

/** Whether a condition has an OR that is in no brackets. */
function isChoice(sql) {
  let bare = sql.replace(/'(?:[^'\\]|\\.)*'/gs, "''");
  for (let before; before !== bare; ) {
    before = bare;
    bare = before.replace(/\([^()]*\)/g, '');
  }
  return / OR /.test(bare);
}

/**
 * Return a condition that holds where all members of a filter do. Brackets are only where they
 * change the meaning: all else is written as Malloy does, so that BuildIDs stay.
 *
 * `write` returns the SQL of a member about a column. Its own SQL may be anything, so where to write
 * brackets is found out for a column that is one word.
 */
function all(members, column, write) {
  const written = members.map(member => {
    const sql = write(member, column);
    return isChoice(write(member, 'x')) ? `(${sql})` : sql;
  });
  return written.join(' AND ');
}

/** Let Malloy's compiler write filters as they are meant, for dialects that are `mended`. */
export function mendFilters() {
  const {compile} = FilterCompilers;
  FilterCompilers.compile = (type, filter, column, dialect, qi) => {
    const sql = compile(type, filter, column, dialect, qi);
    // As Malloy writes `not (x ~ f'…')`: what is not known to match does not match.
    return dialect.negates ? `COALESCE(NOT (${sql}),TRUE)` : sql;
  };
  for (const of of ['numberCompile', 'stringCompile']) {
    const write = FilterCompilers[of];
    FilterCompilers[of] = (filter, column, dialect) => {
      if (!dialect.mended || filter.operator !== 'and') return write(filter, column, dialect);
      return all(filter.members, column, (member, x) => FilterCompilers[of](member, x, dialect));
    };
  }
  const {compile: compileTimes} = TemporalFilterCompiler.prototype;
  TemporalFilterCompiler.prototype.compile = function (filter) {
    if (!this.d.mended || filter.operator !== 'and') return compileTimes.call(this, filter);
    const about = x => new TemporalFilterCompiler(x, this.d, this.timetype, this.qi);
    return all(filter.members, this.expr, (member, x) => about(x).compile(member));
  };
  const {expandLiteral} = TemporalFilterCompiler.prototype;
  TemporalFilterCompiler.prototype.expandLiteral = function (time) {
    if (!this.d.mended || time.units !== 'quarter') return expandLiteral.call(this, time);
    const {literal} = time;
    const [year, quarter] = [Number(literal.slice(0, 4)), Number(literal.slice(6))];
    const first = (y, q) => this.literalNode(`${String(y).padStart(4, '0')}-${MONTHS[q]}-01 00:00:00`);
    const end = quarter < 4 ? first(year, quarter + 1) : first(year + 1, 1);
    return {begin: first(year, quarter), end: end.sql};
  };
}
