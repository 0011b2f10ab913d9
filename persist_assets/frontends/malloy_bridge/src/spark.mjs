// Malloy's Databricks dialect, mended where open-source Spark differs.
import {DatabricksDialect} from '@malloydata/malloy';

/** While `mended` is false, everything is written as Malloy itself would: BuildIDs are made of it. */
export class SparkDialect extends DatabricksDialect {
  mended = false;
}
