"""Asynchronous clients that several parts share: Kubernetes, Prometheus, the admin port of an engine."""
