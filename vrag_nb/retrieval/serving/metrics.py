"""What a search server counts, in Prometheus's text form. Every server has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

METHODS = frozenset({"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128)


class ServerMetrics:
    """Counters, histograms and gauges of one server, in `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("route", "method", "status")
        self._requests = Counter("vrag_requests", "Requests answered.", labels, registry=self.registry)
        self._seconds = Histogram(
            "vrag_request_seconds", "Seconds from a request's head to the end of its answer.", ("route",),
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self._batch_queries = Histogram(
            "vrag_batch_queries", "Queries searched together.", buckets=QUERIES, registry=self.registry
        )
        self._batch_seconds = Histogram(
            "vrag_batch_seconds", "Seconds of one search: embedding and index.", buckets=SECONDS, registry=self.registry
        )
        self.under_way = Gauge("vrag_requests_under_way", "Requests being answered.", registry=self.registry)
        self._images = Counter("vrag_pages_served", "Page images sent.", registry=self.registry)
        self._reloads = Counter("vrag_reloads", "Reloads of the index.", ("outcome",), registry=self.registry)

    def watch(self, name: str, words: str, value: Callable[[], float]) -> None:
        """Add a gauge that is read when it is asked for."""
        Gauge(name, words, registry=self.registry).set_function(value)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A finished request. `route` is the path's template: the values are few, whatever clients ask for."""
        self._requests.labels(route, method if method in METHODS else "other", str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_batch(self, queries: int, seconds: float) -> None:
        self._batch_queries.observe(queries)
        self._batch_seconds.observe(seconds)

    def count_image(self) -> None:
        self._images.inc()

    def count_reload(self, outcome: str) -> None:
        """`outcome`: done, failed or refused."""
        self._reloads.labels(outcome).inc()

    def text(self) -> bytes:
        """Everything in Prometheus's text exposition format."""
        return generate_latest(self.registry)
