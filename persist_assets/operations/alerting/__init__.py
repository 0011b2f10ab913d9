"""Alerts: what is wrong in an environment, told to the channels of `persist.toml`.

the ledger, the project, the clock ─► conditions ─► alerts in the ledger ─► messages ─► channels
(conditions.py)                       (ledger/alerts.py)  (messages.py)     (channels.py)
"""
