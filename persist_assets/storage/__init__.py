"""Files and Delta tables, read and written without Spark."""
