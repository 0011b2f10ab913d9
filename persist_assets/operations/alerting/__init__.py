"""Alerts: problems in an environment, sent to the channels of `persist.toml`.

the ledger, the project, the clock ─► conditions ─► alerts in the ledger ─► messages ─► channels
(conditions.py)                       (ledger/alerts.py)  (messages.py)     (channels.py)
"""
