"""Spans and metrics for OpenTelemetry, if its standard environment variables enable them.

The invariant: without these variables nothing of OpenTelemetry is imported, and a span costs a
look at a variable.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from contextlib import AbstractContextManager

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

SPANS: Mapping[str, str] = {
    "compile": "the files of a project are compiled",
    "plan": "a plan is made",
    "build": "a source is built, until its rows are written and checked, and published or parked",
    "publish": "readers get what was built",
    "evaluate": "wants are evaluated",
    "sync": "another graph is read, or the copy of an external table is brought up to date",
}
"""Every span, without ``persist.`` before it, with its meaning."""

METRICS: Mapping[str, tuple[str, str]] = {
    "build.duration": ("s", "the time of builds that ended, by outcome and method"),
    "build.rows": ("{row}", "the rows that builds wrote"),
    "build.bytes": ("By", "the bytes that builds wrote"),
    "plan.duration": ("s", "the time to make plans"),
    "compile.duration": ("s", "the time to compile projects"),
    "evaluate.duration": ("s", "the time to evaluate wants"),
}
"""Every metric, without ``persist.`` before it: its unit and its meaning. All are histograms."""

_SWITCHES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
)
_NOTHING = nullcontext()


def is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the standard variables enable spans or metrics."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return any(environ.get(name) for name in _SWITCHES)


def span(name: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Return a context manager that records its block as a span, and its duration as a metric.

    Spans of a run belong to one trace, in whichever thread or process they are: its ID follows from
    the attribute `run`.

    Parameters
    ----------
    name
        One of `SPANS`.
    attributes
        Those of None are left out.
    """
    if not is_on():
        return _NOTHING
    tools = _tools()
    return _recorded(tools, name, attributes) if tools is not None else _NOTHING


def spanned(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that records each call of a function as a span: see `span`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def run(*arguments: P.args, **named: P.kwargs) -> T:
            with span(name):
                return function(*arguments, **named)

        return run

    return decorate


def measure(name: str, value: float | None, **attributes: Any) -> None:
    """Record a value of one of `METRICS`; None records nothing."""
    if value is None or not is_on():
        return
    tools = _tools()
    if tools is not None:
        tools.measure(name, value, _attributes(attributes))


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"persist.{name}": value for name, value in values.items() if value is not None}


@contextmanager
def _recorded(tools: _Tools, name: str, values: Mapping[str, Any]) -> Generator[None]:
    from time import perf_counter

    began = perf_counter()
    try:
        with tools.start(name, _attributes(values), values.get("run")):
            yield
    finally:
        if f"{name}.duration" in METRICS and name != "build":  # builds say more of their end
            tools.measure(f"{name}.duration", perf_counter() - began, {})


class _Tools:
    """The tracer and the instruments of this process."""

    def __init__(self) -> None:
        from opentelemetry import metrics, trace

        _set_providers()
        self._trace = trace
        self._tracer = trace.get_tracer("persist_assets")
        meter = metrics.get_meter("persist_assets")
        self._histograms = {
            name: meter.create_histogram(f"persist.{name}", unit=unit, description=about)
            for name, (unit, about) in METRICS.items()
        }

    def start(self, name: str, attributes: dict[str, Any], run: Any) -> Any:
        """Return a span that is the current one while its context lasts."""
        context: Any = None
        if run and not self._trace.get_current_span().get_span_context().is_valid:
            digest = sha256(str(run).encode()).digest()
            parent = self._trace.SpanContext(
                int.from_bytes(digest[:16]),
                int.from_bytes(digest[16:24]),
                is_remote=True,
                trace_flags=self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED),
            )
            context = self._trace.set_span_in_context(self._trace.NonRecordingSpan(parent))
        return self._tracer.start_as_current_span(
            f"persist.{name}", context=context, attributes=attributes
        )

    def measure(self, name: str, value: float, attributes: dict[str, Any]) -> None:
        """Record a value."""
        self._histograms[name].record(value, attributes)


@cache
def _tools() -> _Tools | None:
    try:
        return _Tools()
    except ImportError as error:
        hint = "pip install persist-assets[otel]"
        log.warning(
            "OpenTelemetry is not used: %s (%s)", error, hint, extra={"action": "telemetry"}
        )
        return None


def _set_providers() -> None:
    """Set up what the variables describe, unless this process has providers already.

    Spans and metrics are sent in the background, and once more when the process ends.
    """
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "persist"}))
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        exporter = _exporter("traces")
        if exporter is not None:
            provider = TracerProvider(resource=resource)
            provider.add_span_processor(BatchSpanProcessor(exporter))
            trace.set_tracer_provider(provider)
    if "Proxy" in type(metrics.get_meter_provider()).__name__:
        exporter = _exporter("metrics")
        if exporter is not None:
            reader = PeriodicExportingMetricReader(exporter)
            metrics.set_meter_provider(MeterProvider([reader], resource=resource))


def _exporter(signal: str) -> Any:
    """Return the exporter that the variables name for `traces` or `metrics`; None: none.

    Raises
    ------
    ImportError
        It is not installed.
    """
    from importlib.metadata import entry_points

    name = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER") or "otlp"
    if name == "none":
        return None
    if name == "otlp":
        specific = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        protocol = specific or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for entry in entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
        return entry.load()()
    raise ImportError(f"unknown exporter `{name}` for {signal}")
