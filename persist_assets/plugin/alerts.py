"""Alerts in Dagster: a sensor that checks for problems and sends the alerts that are due."""

from collections.abc import Iterator

import dagster as dg

from persist_assets.core.errors import PersistError
from persist_assets.operations.alerting.turn import take_turn
from persist_assets.plugin.runtime import Runtime

_INTERVAL_S = 30


def alerts_sensors(runtime: Runtime, name: str) -> Iterator[dg.SensorDefinition]:
    """Yield the sensor that sends alerts, if the project has channels; it is on by default.

    It starts no runs.
    """
    if not runtime.settings.channels:
        return

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            turn = take_turn(runtime.observer())
        except PersistError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        for problem in turn.problems:
            context.log.warning(problem)
        counts = f"{turn.opened} opened, {turn.closed} closed, {turn.sent} messages sent"
        return dg.SkipReason("; ".join((counts, *turn.problems)))

    yield dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Send alerts to the channels of `[alerts]` in persist.toml.",
    )
