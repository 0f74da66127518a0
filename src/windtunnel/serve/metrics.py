"""GET /metrics: Prometheus counters, gauges and histograms of one server."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from windtunnel.generate import Generator

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class ServerMetrics:
    """Metrics of a server; the registry is its own, so that several servers can live in one process."""

    def __init__(self, generator: Generator) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("windtunnel_requests", "Completion requests by status code", ["status"], registry=self.registry)
        self.latency = Histogram(
            "windtunnel_request_seconds", "Seconds from request to the end of the answer", buckets=BUCKETS, registry=self.registry
        )
        self.first_token = Histogram(
            "windtunnel_first_token_seconds", "Seconds from request to the first text", buckets=BUCKETS, registry=self.registry
        )
        self.registry.register(GeneratorCollector(generator))

    def text(self) -> bytes:
        """Return all of them in Prometheus's text format."""
        return generate_latest(self.registry)


class Record:
    """One request's times from now on; each is recorded once."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics, self._started = metrics, time.monotonic()
        self._first = self._ended = False

    def first_text(self) -> None:
        """Note that the first text goes out."""
        if not self._first:
            self._first = True
            self._metrics.first_token.observe(time.monotonic() - self._started)

    def end(self, status: int) -> None:
        """Note that the answer is complete, or given up, with its HTTP status; a second call changes nothing."""
        if not self._ended:
            self._ended = True
            # By status alone: a label for each model or user would grow without bound.
            self._metrics.requests.labels(str(status)).inc()
            self._metrics.latency.observe(time.monotonic() - self._started)


class GeneratorCollector(Collector):
    """Reads the generator's counters when asked."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def collect(self) -> Iterator[Metric]:
        """Yield the generator's state now, as Prometheus's metrics."""
        generator, stats = self._generator, self._generator.stats
        counters = {
            "windtunnel_prompt_tokens": ("Prompt tokens processed", stats.prompt_tokens),
            "windtunnel_completion_tokens": ("Tokens generated", stats.completion_tokens),
            "windtunnel_sequences_finished": ("Sequences completed", stats.finished),
            "windtunnel_sequences_cancelled": ("Sequences whose client went away", stats.cancelled),
            "windtunnel_sequences_failed": ("Sequences given up because a step failed", stats.failed),
            "windtunnel_decode_steps": ("Decode steps over all slots", stats.steps),
        }
        # Read when they are asked for: the generator's thread counts anyway, and knows nothing of servers.
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value=value)
        rate = stats.tokens_per_second(time.monotonic())
        gauges: dict[str, tuple[str, float]] = {
            "windtunnel_queue_depth": ("Sequences waiting for a slot", generator.waiting),
            "windtunnel_slots_used": ("Sequences being decoded", generator.running),
            "windtunnel_slots": ("Sequences that can be decoded together", generator.slots),
            "windtunnel_tokens_per_second": ("Tokens generated a second, last ten seconds", rate),
            "windtunnel_up": ("1 while the generator can generate", int(generator.alive)),
        }
        for name, (text, level) in gauges.items():
            yield GaugeMetricFamily(name, text, value=level)
