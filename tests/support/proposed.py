"""The programs of the proposal, word for word, with the comma that JSON does not allow."""

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

V1 = """create view v1 as select * from external_table
where
    category = 'invoices' and
    ts >= NOW() - 6 months;
"""
V2 = """create view v1 as select * from external_table
where
    category = 'deposits' and
    ts >= NOW() - 12 months;
"""
