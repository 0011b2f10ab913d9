"""The external table of the proposal, word for word, with the comma that JSON does not allow."""

TABLE = """create external table external_table (
    id bigint not null primary key,
    category string,
    ts timestamp
) with (
    'connectors' = '[{
        "transport": {
            "name": "delta_table_input",
            "config": {
                "uri": "s3://...",
            }
        }
    }]');
"""
