"""Asynchronous clients that several packages share: for Kubernetes, Prometheus, an engine's admin port, and load."""
